"""The engine of jobs: where their tasks run."""
