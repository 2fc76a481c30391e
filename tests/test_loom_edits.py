"""`make loom-edits`: each edit can still be made, none is left out, and src/runtime/MODELS.md says the same."""

import pytest

from tests.loom_edits.edits import PAGE, ROOT, Mistake, models_in, orderings, read, unmodelled, with_tables

pytestmark = pytest.mark.native


def test_each_edit_changes_text_that_stands_once_in_its_file():
    edits = read()
    assert len(edits) > 50
    for edit in edits:
        text = (ROOT / edit.file).read_text()
        assert edit.apply(text) != text


def test_no_two_edits_are_the_same():
    edits = read()
    assert len({(edit.heading, edit.title) for edit in edits}) == len(edits)
    assert len({(edit.file, str(edit.changes)) for edit in edits}) == len(edits)


def test_every_model_that_is_to_find_an_edit_exists():
    models = models_in(ROOT)
    assert len(models) == len(set(models))
    assert {name for edit in read() for name in edit.models} <= set(models)


def test_every_ordering_of_the_runtime_is_weakened_by_an_edit_or_said_to_have_no_model():
    excused = unmodelled()
    left_out = []
    for path in (ROOT / "src/runtime").rglob("*.rs"):
        if path.name.endswith("model.rs"):
            continue
        file, text = str(path.relative_to(ROOT)), path.read_text()
        known = [before for edit in read() if edit.file == file for before, _ in edit.changes] + excused.get(file, [])
        places = [(text.index(part), text.index(part) + len(part)) for part in known]
        for start, end in orderings(path):
            if not any(first <= start and end <= last for first, last in places):
                left_out.append(f"{file}:{text.count(chr(10), 0, start) + 1}: {text[start:end]}")
    assert left_out == []


def test_what_has_no_model_is_still_there():
    for file, parts in unmodelled().items():
        text = (ROOT / file).read_text()
        assert [part for part in parts if text.count(part) != 1] == []


def test_the_tables_of_the_page_are_the_edits():
    page = PAGE.read_text()
    assert page == with_tables(page, read()), "say `python -m tests.loom_edits --write`"


def test_text_that_is_gone_or_stands_twice_is_a_mistake():
    edit = read()[0]
    (before, _), *_ = edit.changes
    for text in ("", before + before):
        with pytest.raises(Mistake, match="times in"):
            edit.apply(text)
