#!/usr/bin/env python3
"""Compares the runs of scripts/ab.sh row by row.

    ab_report.py FOLDER     with old.N.json, new.N.json and again.N.json of turns N

A turn's ratio is NEW's value to OLD's, turned so that more than 1 is slower. The noise of a row is
the median distance from 1 of OLD's ratios to OLD's second run. A row is slower if the median of its
ratios is beyond 3 % and beyond the noise, or if NEW lacks it. Ends with 1 if a row is slower, with
2 if there is nothing to compare. Writes ab.json beside the runs.
"""

import json
import pathlib
import statistics
import sys

BEYOND = 0.03
MORE_IS_BETTER = {"GB/s", "GiB/s", "1/s"}


def read(folder: pathlib.Path, side: str) -> dict[int, dict[str, dict]]:
    """Returns {turn: {row id: row}} of a side."""
    runs = {}
    for file in folder.glob(f"{side}.*.json"):
        rows = json.loads(file.read_text())["rows"]
        runs[int(file.name.split(".")[1])] = {row["id"]: row for row in rows if row.get("value")}
    return runs


def ratios(base: dict, other: dict, name: str) -> list[float]:
    """Returns a ratio for each turn that has the row on both sides; more than 1: `other` is slower."""
    found = []
    for turn in sorted(base.keys() & other.keys()):
        a, b = base[turn].get(name), other[turn].get(name)
        if a and b:
            more = a["unit"] in MORE_IS_BETTER
            found.append(a["value"] / b["value"] if more else b["value"] / a["value"])
    return found


def compare(folder: pathlib.Path) -> list[dict]:
    old, new, again = (read(folder, side) for side in ("old", "new", "again"))
    names = dict.fromkeys(name for run in old.values() for name in run)
    rows = []
    for name in names:
        paired, same = ratios(old, new, name), ratios(old, again, name)
        noise = statistics.median([abs(r - 1) for r in same]) if same else 0.0
        row = {"id": name, "turns": len(paired), "noise": round(noise, 4)}
        if paired:
            ratio = statistics.median(paired)
            row |= {"ratio": round(ratio, 4), "slower": ratio - 1 > max(BEYOND, noise)}
        else:
            row |= {"ratio": None, "slower": True}
        rows.append(row)
    return rows


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    rows = compare(folder)
    if not rows:
        print(f"{folder}: no run of OLD has rows", file=sys.stderr)
        return 2
    (folder / "ab.json").write_text(json.dumps({"beyond": BEYOND, "rows": rows}, indent=1) + "\n")
    print(f"{'row':44} {'NEW/OLD':>8} {'noise':>7} turns   (more than 1: NEW is slower)")
    for row in rows:
        ratio = "absent" if row["ratio"] is None else f"{row['ratio']:.3f}"
        mark = "  SLOWER" if row["slower"] else ""
        print(f"{row['id']:44} {ratio:>8} {row['noise']:7.3f} {row['turns']:5}{mark}")
    return 1 if any(row["slower"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
