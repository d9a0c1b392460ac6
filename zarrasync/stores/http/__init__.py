"""Read-only access to plain web servers."""
