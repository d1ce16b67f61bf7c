#!/usr/bin/env python3
"""Compares two results files of `attn bench` (or any file in that form): a row a problem, and the ratio.

    bench/compare.py before.json after.json
    bench/compare.py --fail-below 0.95 before.json after.json

A ratio above 1 means that the second file is faster. Problems are matched by problem string and, where a
problem appears with several, by implementation; what only one file has is listed below the table. Exit codes:
0 compared; 1 a ratio lies below --fail-below; 2 a file is not such a results file, or nothing matches.
Needs only Python's standard library. Tested in tests/cli/compare_test.py.
"""
import argparse
import json
import math
import sys


class NotResults(Exception):
    pass


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise NotResults(f"{path}: {error}") from error
    rows = document.get("rows") if isinstance(document, dict) else None
    if rows is None and isinstance(document, dict) and isinstance(document.get("parts"), dict):
        rows = [row for part in document["parts"].values() if isinstance(part, dict) for row in part.get("rows", [])]
    if not isinstance(rows, list):
        raise NotResults(f"{path}: no array 'rows'; is it a results document?")
    found = {}
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("problem"), str):
            raise NotResults(f"{path}: row {index} has no 'problem'")
        median = row.get("median_us")
        if isinstance(median, (int, float)) and not isinstance(median, bool) and median > 0:
            data = row.get("data", "plain")  # of hard data: the same problem, another row
            problem = row["problem"] + ("" if data == "plain" else f" data={data}")
            found.setdefault(problem, {}).setdefault(row.get("impl") or "", row)
    return document, found


def pairs(before, after):
    """(problem, row, row): same implementation where both have it, else the only one of each."""
    for problem, first in before.items():
        second = after.get(problem, {})
        common = [impl for impl in first if impl in second]
        if common:
            for impl in common:
                yield problem, first[impl], second[impl]
        elif len(first) == 1 and len(second) == 1:
            yield problem, next(iter(first.values())), next(iter(second.values()))


def time_text(us):
    for limit, scale, unit in ((1e3, 1, "µs"), (1e6, 1e-3, "ms"), (math.inf, 1e-6, "s")):
        if us < limit:
            return f"{us * scale:.3g} {unit}"
    return "–"


def spread(row):
    """Half the distance from p10 to p90, as a share of the median: how much a ratio may mean."""
    low, high = row.get("p10_us"), row.get("p90_us")
    return f"±{(high - low) / 2 / row['median_us']:.0%}" if low and high else ""


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) if i in (0, 1) else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())


def same_machine(before, after):
    contexts = [document.get("context") or {} for document in (before, after)]
    return [f"{key}: {contexts[0].get(key)} | {contexts[1].get(key)}"
            for key in ("machine", "cpu", "gpu", "threads", "compiler", "flags")
            if contexts[0].get(key) != contexts[1].get(key)]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--fail-below", type=float, default=0.0, metavar="RATIO",
                        help="exit 1 if a problem's ratio lies below it")
    options = parser.parse_args(argv)
    try:
        (before_document, before), (after_document, after) = load(options.before), load(options.after)
    except NotResults as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2

    table = [("problem", "impl", "before", "", "after", "", "ratio")]
    ratios = []
    for problem, first, second in pairs(before, after):
        ratio = first["median_us"] / second["median_us"]
        ratios.append((ratio, problem))
        impls = [row.get("impl") or "–" for row in (first, second)]
        table.append((problem, impls[0] if impls[0] == impls[1] else " → ".join(impls),
                      time_text(first["median_us"]), spread(first), time_text(second["median_us"]), spread(second),
                      f"{ratio:.3f}"))
    if not ratios:
        print("compare.py: the two files have no problem in common", file=sys.stderr)
        return 2
    print_table(table)
    mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
    print(f"\n{len(ratios)} problems, geometric mean {mean:.3f}, worst {min(ratios)[0]:.3f}, best {max(ratios)[0]:.3f}")
    for name, here, there in ((options.before, before, after), (options.after, after, before)):
        for problem in here:
            if problem not in there:
                print(f"only in {name}: {problem}")
    for difference in same_machine(before_document, after_document):
        print(f"differs: {difference}")
    return 1 if min(ratios)[0] < options.fail_below else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
