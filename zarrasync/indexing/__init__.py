"""Selections as data: parsing, composing, and splitting along chunk grids. No IO."""
