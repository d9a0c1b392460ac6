"""Pyramids: coarser levels of an array for viewers."""

from zarrasync.bulk.pyramid.functions import plan_pyramid, pyramid
from zarrasync.bulk.pyramid.source import PyramidAxes
from zarrasync.bulk.reports import PyramidReport

__all__ = ["PyramidAxes", "PyramidReport", "plan_pyramid", "pyramid"]
