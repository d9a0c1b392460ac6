"""Jobs over whole hierarchies: ingest, copy, validate, statistics."""
