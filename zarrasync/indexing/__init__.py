"""Selections as data: parsing, composing, and cutting along chunk grids. Pure, no IO."""
