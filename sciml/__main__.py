"""`python -m sciml info`."""

import argparse
from collections.abc import Sequence

from ._info import info, version


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sciml",
        description="Solve, fit and learn differential equations with JAX and Equinox.",
    )
    parser.add_argument("--version", action="version", version=version("sciml-jax"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser(
        "info",
        help="print versions, devices and precision, for bug reports",
        description="Print the versions of sciml and its dependencies, the devices and the precision.",
    )
    parser.parse_args(argv)
    print(info())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
