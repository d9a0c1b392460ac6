"""Read-only access to files on web servers."""
