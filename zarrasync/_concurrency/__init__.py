"""Where work runs and who waits for what: drivers, thread pools, gates, key locks, retries, the sync bridge."""
