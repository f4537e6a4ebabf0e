"""A progress bar, when there is a terminal to show it on and tqdm to draw it."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(total: int, unit: str) -> Iterator[Callable[..., None]]:
    """Yields `tick(n, text="")`; does nothing without tqdm (extra `progress`) or a terminal."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        tqdm = None
    if tqdm is None or total <= 1 or not sys.stderr.isatty():
        yield lambda n, text="": None
        return
    with tqdm(total=total, unit=f" {unit}") as bar:

        def tick(n: int, text: str = "") -> None:
            bar.update(n)
            if text:
                bar.set_postfix_str(text)

        yield tick
