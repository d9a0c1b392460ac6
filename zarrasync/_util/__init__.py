"""Helpers without a concept of Zarr: strict JSON, immutable mappings, plugin discovery, memory reuse, code generation."""
