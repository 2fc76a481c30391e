"""Reads durations from environment variables."""

from __future__ import annotations

import math
import os
import re
import warnings

_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def seconds(text: str) -> float:
    """Return the seconds of a text such as `250ms`, `0.25` or `0.25s`. Raises ValueError if it is no such text."""
    match = re.fullmatch(r"([0-9.]+(?:e[-+]?[0-9]+)?)\s*(s|ms|us|)", text.strip())
    number = float(match[1]) if match else math.inf
    if match is None or not math.isfinite(number):
        raise ValueError(f"not a duration: {text!r}")
    return number * _UNITS[match[2]]


def from_environment(name: str, default: float) -> float:
    """Return the seconds that a variable says; infinity for `off`. Warns about a value that is no duration."""
    text = os.environ.get(name, "")
    if not text:
        return default
    if text.strip().lower() == "off":
        return math.inf
    try:
        found = seconds(text)
    except ValueError:
        found = 0.0
    if found <= 0:
        warnings.warn(f"{name} must be a duration such as 250ms or 0.25, or off, not {text!r}", stacklevel=2)
        return default
    return found
