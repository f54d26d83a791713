# SPDX-License-Identifier: GPL-3.0-or-later
"""`./dev simulate [--years 10] [--write]`: the league over years; --write puts the table into docs/benchmarks.md."""

from __future__ import annotations

import argparse

from tests.benchmark.figures import put

from .league import play, table


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev simulate")
    parser.add_argument("--years", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    text = f"{args.years:g} server-years, seeds from {args.seed}; made by `./dev simulate --years {args.years:g} --write`.\n\n"
    text += table(play(args.years, args.seed))
    print(text)
    if args.write:
        put("simulation", text)


if __name__ == "__main__":
    main()
