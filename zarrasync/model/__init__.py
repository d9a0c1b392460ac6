"""The parts that metadata is made of: data types, fill values, chunk grids, chunk keys, storage transformers."""
