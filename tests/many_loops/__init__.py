"""Many loops at once: a stress of everything that loops and threads of one process share."""
