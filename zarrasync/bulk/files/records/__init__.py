"""What a dataset records about jobs: their plans and claims, and the files that were ingested."""
