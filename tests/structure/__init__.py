"""The structure check of `make lint`: which room of the house may use which, and no cycles. `python -m tests.structure`."""
