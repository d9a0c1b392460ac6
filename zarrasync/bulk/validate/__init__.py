"""Validating documents and chunks of arrays and groups."""

from zarrasync.bulk.validate.functions import validate

__all__ = ["validate"]
