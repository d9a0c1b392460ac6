"""Pyramids: copies of an array with fewer and fewer elements, for viewers."""

from zarrasync.bulk.pyramid.functions import LevelReport, PyramidReport, pyramid

__all__ = ["LevelReport", "PyramidReport", "pyramid"]
