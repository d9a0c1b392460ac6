"""Copying arrays and groups to other stores, formats and layouts."""
