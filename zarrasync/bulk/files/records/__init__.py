"""What a dataset records about jobs: their plans and claims, the files that were ingested, and samples of their rows."""
