"""Pyramids: coarser levels of an array for viewers."""

from zarrasync.bulk.pyramid.functions import plan_pyramid, pyramid
from zarrasync.bulk.pyramid.report import PyramidReport

__all__ = ["PyramidReport", "plan_pyramid", "pyramid"]
