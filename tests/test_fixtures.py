"""The fixtures of the tests themselves."""

import random

DRAWN = []


def test_random_numbers_are_the_same_in_every_run(request):
    DRAWN.append(random.random())
    assert DRAWN[0] == random.Random(request.node.nodeid).random()


def test_another_test_draws_other_numbers():
    assert random.random() not in DRAWN
