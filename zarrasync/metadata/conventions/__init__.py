"""Conventions on attributes: OME-Zarr, zarr-conventions, CF and xarray. No IO.

A convention is a function that returns the ``Meaning`` of a node's attributes. Representations, the server, the xarray
engine and ``validate`` use the meaning of a node and depend on no convention.
"""

from __future__ import annotations

from zarrasync.metadata.conventions.cf_attributes import FILL, unit_of
from zarrasync.metadata.conventions.meaning import CRS, RGBA, Axis, Labels, Level, Link, Meaning, Violation
from zarrasync.metadata.conventions.ome import ome_archive_comment
from zarrasync.metadata.conventions.registry import axes_of, axis_names, meaning_of, register_convention
from zarrasync.metadata.conventions.xarray_properties import DIMENSIONS, XarrayProperties, convert_properties

__all__ = [
    "CRS",
    "DIMENSIONS",
    "FILL",
    "RGBA",
    "Axis",
    "Labels",
    "Level",
    "Link",
    "Meaning",
    "Violation",
    "XarrayProperties",
    "axes_of",
    "axis_names",
    "convert_properties",
    "meaning_of",
    "ome_archive_comment",
    "register_convention",
    "unit_of",
]
