"""Calls of the compiled kernel: descriptions of selections, and the jobs that read, write, decode and encode their chunks."""
