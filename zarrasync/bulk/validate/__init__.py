"""Validating documents and chunks of arrays and groups."""
