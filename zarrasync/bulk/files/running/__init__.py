"""Running a plan: its tasks, the processes that run them, and publishing and checking the result."""
