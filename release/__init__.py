"""What makes, checks and releases the distributions; see docs/releasing.md."""
