"""Stores over fsspec filesystems."""
