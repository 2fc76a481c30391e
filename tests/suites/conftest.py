"""own/ is run by `python -m tests.suites`, in other environments than this one's pytest."""

collect_ignore = ["own"]
