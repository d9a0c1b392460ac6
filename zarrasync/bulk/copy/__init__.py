"""Copying arrays and groups to other stores, formats and layouts."""

from zarrasync.bulk.copy.functions import copy

__all__ = ["copy"]
