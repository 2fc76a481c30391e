"""Files of wakeloop.open against those of the built-in open: random operations have the same results, raise the same
exceptions, and leave the same content. One that is cancelled is done as a whole, or not at all."""

import os
import random

import pytest

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

from tests.support.file_scenarios import Comparison, Scenario  # noqa: E402

SCENARIOS = int(os.environ.get("FILE_SCENARIOS", "300"))
FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
PARTS = 4

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:line buffering"),
    pytest.mark.timeout(60 + SCENARIOS // 10),
]


def seeds(part, count):
    return range(FIRST_SEED + part * count // PARTS, FIRST_SEED + (part + 1) * count // PARTS)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_operations_do_what_they_do_on_files_of_io(part, tmp_path, run):
    for seed in seeds(part, SCENARIOS):
        try:
            run(Comparison(Scenario(seed), tmp_path).run())
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("part", range(PARTS))
def test_a_random_operation_that_is_cancelled_is_done_as_a_whole_or_not_at_all(part, tmp_path, run):
    for seed in seeds(part, SCENARIOS // 10):
        try:
            run(Comparison(Scenario(seed), tmp_path, random.Random(seed)).run())
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
