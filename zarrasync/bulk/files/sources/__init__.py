"""Source files: which ones a job means, their headers, and reading their values."""
