"""The engine of jobs: their tasks, where they run, and the claims of their destinations."""
