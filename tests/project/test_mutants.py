"""The data of `make mutants` matches the source and the tables of tests/models/MODELS.md."""

import pytest

from tests.mutants.mutants import PAGE, ROOT, Mistake, models_in, orderings, read, unmodelled, with_tables

pytestmark = pytest.mark.native


def test_each_mutant_changes_text_that_occurs_once_in_its_file():
    mutants = read()
    assert len(mutants) > 50
    for mutant in mutants:
        text = (ROOT / mutant.file).read_text()
        assert mutant.apply(text) != text


def test_no_two_mutants_are_the_same():
    mutants = read()
    assert len({(mutant.heading, mutant.title) for mutant in mutants}) == len(mutants)
    assert len({(mutant.file, str(mutant.changes)) for mutant in mutants}) == len(mutants)


def test_every_model_named_for_a_mutant_exists():
    models = models_in(ROOT)
    assert len(models) == len(set(models))
    assert {name for mutant in read() for name in mutant.models} <= set(models)


def test_every_memory_ordering_has_a_mutant_or_is_listed_as_unmodelled():
    listed = unmodelled()
    missing = []
    for path in (ROOT / "src/runtime").rglob("*.rs"):
        file, text = str(path.relative_to(ROOT)), path.read_text()
        known = [before for mutant in read() if mutant.file == file for before, _ in mutant.changes] + listed.get(file, [])
        places = [(text.index(part), text.index(part) + len(part)) for part in known]
        for start, end in orderings(path):
            if not any(first <= start and end <= last for first, last in places):
                missing.append(f"{file}:{text.count(chr(10), 0, start) + 1}: {text[start:end]}")
    assert missing == []


def test_the_unmodelled_orderings_exist():
    for file, parts in unmodelled().items():
        text = (ROOT / file).read_text()
        assert [part for part in parts if text.count(part) != 1] == []


def test_the_tables_of_the_page_match_the_mutants():
    page = PAGE.read_text()
    assert page == with_tables(page, read()), "run `python -m tests.mutants --write`"


def test_text_that_is_missing_or_occurs_twice_is_a_mistake():
    mutant = read()[0]
    (before, _), *_ = mutant.changes
    for text in ("", before + before):
        with pytest.raises(Mistake, match="times in"):
            mutant.apply(text)
