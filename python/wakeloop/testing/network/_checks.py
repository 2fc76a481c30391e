"""Checks of what a test's script says: an impossible network is refused when it is described."""

from __future__ import annotations

import math
from typing import Any


def number(name: str, value: Any, *, positive: bool = False) -> float:
    """Return a finite number that is not negative, or positive."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__qualname__}")
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{name} must be finite and {'positive' if positive else 'not negative'}: {value!r}")
    return float(value)


def probability(name: str, value: Any) -> float:
    """Return a number from 0 to 1."""
    if number(name, value) > 1:
        raise ValueError(f"{name} is a probability, between 0 and 1: {value!r}")
    return float(value)


def interval(name: str, value: Any) -> tuple[float, float]:
    """Return a pair of numbers, the lower first. One number stands for an interval without a width."""
    if not isinstance(value, tuple):
        bound = number(name, value)
        return bound, bound
    if len(value) != 2:
        raise ValueError(f"{name} must be a number, or a pair of the lowest and the highest: {value!r}")
    low, high = number(name, value[0]), number(name, value[1])
    if low > high:
        raise ValueError(f"{name}: the lowest, {low!r}, is above the highest, {high!r}")
    return low, high


def count(name: str, value: Any, *, least: int = 0) -> int:
    """Return an int that is not below `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__qualname__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}: {value!r}")
    return value
