"""Copying arrays and groups to other stores, formats and layouts."""

from zarrasync.bulk.copy.functions import copy, plan_copy

__all__ = ["copy", "plan_copy"]
