"""Arrays, groups and selections, and the functions that open and create them."""
