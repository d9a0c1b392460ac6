"""The engine of jobs: tasks, executors that run them, and claims of destinations."""
