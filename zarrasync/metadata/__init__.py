"""Array and group metadata, and the interface that turns documents into metadata and back. Pure, no IO."""
