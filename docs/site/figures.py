"""Draws rows as evidence/*.json has them: linkspan beside the bare call, and beside others, of the
same run. The site has them as page(); bench/peers/compare.py writes them as file()."""

import html
import json
import pathlib

WIDTH, BAR, GAP, LABELS, VALUES = 760, 14, 4, 300, 110  # of a drawing, in pixels
TIMES = ("ns", "us", "ms", "s", "% of a core")  # less is better
CAPTION, MARGIN = 18, 16  # of file()
STYLE = """
svg { background: #fff; font-family: sans-serif; }
text { fill: #222; font-size: 11px; }
.title { font-size: 13px; font-weight: bold; }
.ours { fill: #009485; } .bare { fill: #888; } .other { fill: #bbb; }
@media (prefers-color-scheme: dark) {
  svg { background: #1e2129; } text { fill: #ddd; }
  .ours { fill: #26a69a; } .bare { fill: #8d93a1; } .other { fill: #5b6070; }
}
"""
INTRO = """# Figures

What `evidence/*.json` has, drawn when this site was built. [Performance](performance.md) says how
the rows were measured. The first bar of a row is linkspan; those below it are the bare call of the
same run, then others. Each row has its own scale. `ratio` is linkspan's figure by that of the bare
call; a bar is what the row should reach, a ratio or the figure itself.
"""


def page(evidence: pathlib.Path) -> str:
    parts = [INTRO]
    for file in sorted(evidence.glob("*.json")):
        topic = json.loads(file.read_text(encoding="utf-8"))
        rows = [row for row in topic["rows"] if isinstance(row.get("value"), (int, float))]
        if rows:
            parts += [
                heading(file.stem, topic),
                *map(drawing, filter(compared, rows)),
                others(rows),
            ]
    return "\n\n".join(parts) + "\n"


def heading(name: str, topic: dict) -> str:
    return (
        f"## {name}\n\n{topic['what'][0].upper()}{topic['what'][1:]}.\n\n"
        f"`{topic['command']}`\n\n{topic['date']}, commit `{topic['commit'][:12]}`, "
        f"{where(topic['machine'])}"
    )


def where(machine: dict) -> str:
    gpus = machine["gpus"]
    cards = f"{len(gpus)} x {gpus[0]}, driver {machine['driver']}" if gpus else "no GPU"
    return f"{cards}, {machine['cpus']} CPUs, Linux {machine['kernel'].split('-')[0]}"


def file(topic: dict) -> str:
    """Returns an SVG file with the bars of all rows, in the colours of a light or a dark screen."""
    about = html.escape(f"{topic['date']}, {where(topic['machine'])}")
    lines = [
        f'<text class="title" y="16">{html.escape(topic["what"])}</text>',
        f'<text y="34">{about}</text>',
    ]
    y = 50
    for row in topic["rows"]:
        drawn, height = bars(row)
        lines.append(f'<text y="{y + 11}">{html.escape(row["id"])}: {says(row)}</text>')
        lines.append(f'<g transform="translate(0 {y + CAPTION})">{drawn}</g>')
        y += CAPTION + height + MARGIN
    wide = WIDTH + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-{MARGIN} 0 {wide} {y}" width="{wide}" '
        f'height="{y}" role="img"><style>{STYLE}</style>{"".join(lines)}</svg>\n'
    )


def compared(row: dict) -> bool:
    return bool(row.get("ceiling") or row.get("beside"))


def drawing(row: dict) -> str:
    """Returns the bars of one row, for a page of the site."""
    drawn, height = bars(row)
    return (
        f'<figure class="bars"><figcaption><code>{row["id"]}</code> {says(row)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{row["id"]}">{drawn}</svg></figure>'
    )


def bars(row: dict) -> tuple[str, int]:
    """Returns the bars of one row, and their height."""
    figures = [("ours", "linkspan", row["value"])]
    if row.get("ceiling"):
        figures.append(("bare", row.get("ceiling_how") or "bare call", row["ceiling"]))
    figures += [
        ("other", each["how"], each["value"])
        for each in row.get("beside", [])
        if each["value"] != row.get("ceiling")
    ]
    most, unit = max(value for *_, value in figures) or 1, row["unit"]
    lines = []
    for index, (kind, how, value) in enumerate(figures):
        y = index * (BAR + GAP)
        long = max(1, round((WIDTH - LABELS - VALUES) * value / most))
        lines.append(
            f'<text x="{LABELS - 8}" y="{y + 11}" text-anchor="end">{short(how)}</text>'
            f'<rect class="{kind}" x="{LABELS}" y="{y}" width="{long}" height="{BAR}">'
            f"<title>{html.escape(how)}</title></rect>"
            f'<text x="{LABELS + long + 6}" y="{y + 11}">{value:g} {unit}</text>'
        )
    return "".join(lines), len(figures) * (BAR + GAP)


def says(row: dict) -> str:
    text = "less is better" if row["unit"] in TIMES else "more is better"
    if row.get("ratio"):
        text += f"; ratio {row['ratio']:g}"
    if "bar" in row:
        bar = f"{row['bar']:g} {row.get('bar_unit', '')}".strip()
        text += f"; bar {bar}{'' if row.get('pass') else ', missed'}"
    return text


def short(how: str) -> str:
    return html.escape(how if len(how) <= 46 else how[:45].rstrip(" ,;:") + "…")


def others(rows: list[dict]) -> str:
    """Returns a table of the rows that stand beside nothing."""
    alone = [row for row in rows if not compared(row)]
    if not alone:
        return ""
    lines = []
    for row in alone:
        unit = "" if row["unit"] == "count" else row["unit"]
        path = f"by {row['path']}" if row.get("path") else ""
        lines.append(f"| `{row['id']}` | {row['value']:g} {unit} | {path} |")
    return "\n".join(["| measured alone | | |", "|---|---|---|", *lines])
