"""The parts of metadata: data types, fill values, chunk grids, chunk keys."""
