"""Checks that several front functions share."""

import numpy as np


def integer_at_least(name: str, value, least: int = 1) -> int:
    """`value` as a plain integer, or a message."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"`{name}` must be {wanted}, but got {value!r}.")
    return int(value)
