"""The structure check of `make lint`: which room may use which, and no cycles. `python -m tests.structure`."""
