"""The nearest valid name, for messages."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """A sentence to append to a message, or nothing when no name is near."""
    names = {str(v).lower(): str(v) for v in valid}
    near = difflib.get_close_matches(str(name).lower(), list(names), n=1, cutoff=0.6)
    return f" Did you mean {names[near[0]]!r}?" if near else ""
