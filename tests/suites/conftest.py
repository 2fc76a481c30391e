"""`python -m tests.suites` runs own/, in other environments than the one of this pytest."""

collect_ignore = ["own"]
