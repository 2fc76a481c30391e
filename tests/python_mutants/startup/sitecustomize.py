"""Traces every process of a run of tests; it is on the path only while `tests.python_mutants` measures coverage."""

import wakeloop_lines

wakeloop_lines.start()
