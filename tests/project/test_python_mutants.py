"""The data of `make mutants-python` matches the package."""

import pytest

from tests.python_mutants import equivalents

pytestmark = pytest.mark.native


def test_each_equivalent_mutant_is_of_code_that_is_there():
    rows = equivalents.read()
    assert rows
    for row in rows:
        assert row.occurs(), f"{row.module} has no line {row.was!r}"
        assert row.becomes and row.was not in row.becomes and row.why


def test_no_equivalent_mutant_is_listed_twice():
    changes = [(row.module, row.function, row.was, becomes) for row in equivalents.read() for becomes in row.becomes]
    assert len({*changes}) == len(changes)
