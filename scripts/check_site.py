#!/usr/bin/env python3
"""Finds dead links in a built site: check_site.py FOLDER

Each link of a page must lead to a file of the site, with the anchor that it names, and nothing that
a page loads may come from another host. Prints what is wrong and exits 1 if there is anything.
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse

LOADED = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
}
FAR = re.compile(r"(https?:)?//")
FAR_STYLE = re.compile(r"(?:url\(|@import\s)\s*['\"]?((?:https?:)?//[^'\")]*)")


class Page(html.parser.HTMLParser):
    """Collects the anchors, links and loaded files of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given.get("id", ""), given.get("name", "") if tag == "a" else ""}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADED and LOADED[tag] in given:
            self.loaded.append(given[LOADED[tag]])


def check(site: pathlib.Path) -> list[str]:
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    faults = [] if pages else [f"{site}: no pages"]
    for file, page in pages.items():
        where = file.relative_to(site)
        faults += [
            f"{where}: loads {each} of another host" for each in page.loaded if FAR.match(each)
        ]
        for link in dict.fromkeys(page.links + page.loaded):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = urllib.parse.unquote(parts.path)
            base = site if path.startswith("/") else file.parent
            target = (base / path.lstrip("/")).resolve() if path else file
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                faults.append(f"{where}: {link} leads nowhere")
            elif (
                target in pages
                and urllib.parse.unquote(parts.fragment) not in pages[target].anchors
            ):
                faults.append(f"{where}: {link} has no such anchor")
    for file in sorted(site.rglob("*.css")):
        found = FAR_STYLE.findall(file.read_text(encoding="utf-8"))
        faults += [f"{file.relative_to(site)}: loads {each} of another host" for each in found]
    return faults


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problems = check(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(problems) if problems else "site: ok")
    sys.exit(1 if problems else 0)
