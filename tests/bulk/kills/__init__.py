"""Jobs with many files whose processes are killed at random moments, in processes that run the real commands."""
