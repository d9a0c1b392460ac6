"""Pyramids: coarser levels of an array for viewers."""

from zarrasync.bulk.pyramid.functions import plan_pyramid, pyramid
from zarrasync.bulk.pyramid.report import PyramidReport
from zarrasync.bulk.pyramid.source import PyramidAxes

__all__ = ["PyramidAxes", "PyramidReport", "plan_pyramid", "pyramid"]
