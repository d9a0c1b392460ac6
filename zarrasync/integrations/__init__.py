"""zarrasync inside other libraries. Each module here needs the library it is called after."""
