"""The rows of compare.py as one table, and rows of other programs as run.py has them."""

from __future__ import annotations

import textwrap
from typing import Any

OURS, BARE = "linkspan", "bare"
PEERS = ["nixl", "mooncake", "ucx", "nccl", "nvshmem"]  # a peer's `how` begins with its name
COLUMNS = [OURS, *PEERS, BARE]
CEILING = ("ceiling", "ceiling_how", "ratio")

Row = dict[str, Any]


def without_bars(rows: list[Row]) -> list[Row]:
    """Bars are for two H200."""
    out = ("bar", "bar_unit", "pass")
    return [{key: value for key, value in row.items() if key not in out} for row in rows]


def rows_of_nccl(rows: list[Row]) -> list[Row]:
    """Returns each operation once. Its ceiling is as many bare sockets, and no best of `beside`."""
    end = ".vs_sockets"
    sockets = {row["id"].removesuffix(end): row for row in rows if row["id"].endswith(end)}
    made = []
    for row in (row for row in rows if ".vs_" not in row["id"]):
        kept = {key: value for key, value in row.items() if key not in CEILING}
        ceiling = {key: sockets[row["id"]][key] for key in CEILING if row["id"] in sockets}
        made.append({**kept, **ceiling, "id": f"nccl.{row['id']}"})
    return made


def rows_of_device(rows: list[Row]) -> list[Row]:
    """Returns the rows with NVSHMEM as a peer and no ceiling."""
    made = []
    for row in rows:
        one = {**row, "id": f"device.{row['id']}"}
        if row.get("ceiling_how", "").startswith("NVSHMEM"):
            value, how, ratio = (one.pop(key) for key in CEILING)
            one["beside"] = [{"how": how, "value": value, "ratio": ratio}]
        made.append(one)
    return made


def best(row: Row, values: list[float]) -> float:
    return max(values) if row["unit"] == "GB/s" else min(values)


def values_of(row: Row) -> dict[str, float]:
    """By column. Of several ways of one peer the best counts."""
    values = {OURS: row["value"]}
    if "ceiling" in row:
        values[BARE] = row["ceiling"]
    for each in row.get("beside", []):
        column = next(peer for peer in PEERS if each["how"].lower().startswith(peer))
        values[column] = best(row, [each["value"], values.get(column, each["value"])])
    return values


def line_of(row: Row) -> list[str]:
    """Marks the best of linkspan and its peers, if the row has a peer."""
    values = values_of(row)
    compared = {column: value for column, value in values.items() if column != BARE}
    marked = []
    if len(compared) > 1:
        top = best(row, list(compared.values()))
        marked = [column for column, value in compared.items() if value == top]
    cells = [
        f"{values[each]:g}{'*' if each in marked else ' '}" if each in values else "- "
        for each in COLUMNS
    ]
    return [row["id"], *cells, row["unit"]]


def table(rows: list[Row], absent: list[dict[str, str]]) -> str:
    """Says below the rows what is absent, once for each reason."""
    lines = [["row", *(f"{each} " for each in COLUMNS), "unit"], *map(line_of, rows)]
    wide = [max(map(len, column)) for column in zip(*lines)]
    text = []
    for first, *middle, unit in lines:
        cells = [each.rjust(width) for each, width in zip(middle, wide[1:])]
        text.append("  ".join([first.ljust(wide[0]), *cells, unit]))
    text.append("* the best, bare calls aside: of GB/s the most, else the least")
    reasons: dict[str, list[str]] = {}
    for each in absent:
        reasons.setdefault(each["why"], []).append(each["id"])
    for why, ids in reasons.items():
        told = f"absent: {', '.join(ids)}: {why}"
        text.append(textwrap.fill(told, 100, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join(text)
