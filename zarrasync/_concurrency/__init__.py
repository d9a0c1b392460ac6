"""Running and synchronizing work: drivers, thread pools, gates, key locks, retries, the sync bridge."""
