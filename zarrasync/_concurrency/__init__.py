"""Running and synchronizing work: drivers, thread pools, semaphores, key locks, retries, the sync bridge."""
