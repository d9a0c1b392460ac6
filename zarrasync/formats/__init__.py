"""Zarr formats: conversion between documents and the metadata of arrays and groups."""

from __future__ import annotations

from zarrasync.formats.detection import CANDIDATES, SOURCES, by_name, detect, is_document, likely_node, may_be_zarr
from zarrasync.formats.draft import parse_entry_point
from zarrasync.formats.parsed_cache import parse
from zarrasync.formats.v3 import EntryPointFound
from zarrasync.metadata.format import Documents, Format, Kind, RequestedCodecs

__all__ = [
    "CANDIDATES",
    "SOURCES",
    "Documents",
    "EntryPointFound",
    "Format",
    "Kind",
    "RequestedCodecs",
    "by_name",
    "detect",
    "is_document",
    "likely_node",
    "may_be_zarr",
    "parse",
    "parse_entry_point",
]
