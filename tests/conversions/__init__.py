"""Every kind of stored number at every place that reads or writes it; the results are ``docs/conversions.md``."""
