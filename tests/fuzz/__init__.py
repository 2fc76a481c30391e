"""Fuzzing by coverage of what parses what others send or store; see `__main__.py`."""
