"""Makes a site of the documents, which stay plain files: mkdocs calls the on_... functions.

Adds what is generated (pictures, figures, references) and each file outside docs/ that a page links
to, and turns GitHub's Markdown into that of mkdocs. SITE is where a file lies on the site, from its
top; REPOSITORY where it lies in the repository.
"""

import pathlib
import posixpath
import re
import subprocess

import figures
import headers
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFERENCES = {  # the folder of the pages -> the headers
    "cpp": ["include/linkspan/*.hpp", "include/linkspan/compat/*.hpp"],
    "c": ["include/linkspan/*.h", "vcache/native/include/linkspan/*.h"],
    "device": ["include/linkspan/device/*.cuh"],
}
PYTHON = ["linkspan", "linkspan.util", "linkspan.compat.ipc", "linkspan.ray"]
FENCE = re.compile(r"^(```.*?^```[ \t]*$)", re.M | re.S)
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
PICTURE = re.compile(r"^\[Picture: (.+)\]\((pictures/\w+\.dot)\)$", re.M)
COMMENT = re.compile(r"^<!--.*?-->\n", re.M | re.S)
# A paragraph's line before a list or table: GitHub wants no empty line there, mkdocs does.
PARAGRAPH = re.compile(r"^(?![-|#\s]|\d+\. )(.*\S.*\n)(?=(?:- |\d+\. |\|))", re.M)


HEADERS = {
    file: f"reference/{folder}/{headers.page_name(headers.included(file))}"
    for folder, patterns in REFERENCES.items()
    for pattern in patterns
    for file in sorted(ROOT.glob(pattern))
}


def headers_in(folder: str) -> list[pathlib.Path]:
    return [file for file, page in HEADERS.items() if page.startswith(folder)]


def site_of(repository: str) -> str:
    """Returns the page that shows a file or folder of the repository."""
    if page := HEADERS.get(ROOT / repository):
        return page
    path = pathlib.PurePosixPath(repository)
    if (ROOT / path).is_dir():
        readme = path / "README.md"
        return str(readme) if (ROOT / readme).is_file() else f"files/{path}/index.md"
    if path.parts[0] == "docs":
        return str(path.relative_to("docs"))
    if path.parts[0] == "evidence" and path.suffix == ".json":
        return f"figures.md#{path.stem}"
    if repository == "README.md":  # as index.html is docs/index.md
        return "overview.md"
    return repository if path.suffix == ".md" else f"files/{path}.md"


def repository_of(site: str) -> str:
    if site == "overview.md":
        return "README.md"
    return f"docs/{site}" if (ROOT / "docs" / site).exists() else site


def resolved(link: str, repository: str) -> str | None:
    """Returns what a page's link leads to in the repository, if that is a file or folder there."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(repository), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def links_of(text: str) -> list[str]:
    return [match[1] for part in FENCE.split(text)[::2] for match in LINK.finditer(part)]


def on_config(config):
    """Puts the pages of a folder in its place, and README in its."""

    def expand(value):
        if isinstance(value, list):
            return [expand(each) for each in value]
        if isinstance(value, dict):
            return {title: expand(each) for title, each in value.items()}
        if value == "README.md":
            return site_of(value)
        if not value.endswith("/"):
            return value
        if value.startswith("reference/"):
            return [{shown(file): HEADERS[file]} for file in headers_in(value)]
        return [f"{value}{each.name}" for each in sorted((ROOT / "docs" / value).glob("*.md"))]

    def shown(header: pathlib.Path) -> str:
        return headers.included(header).removeprefix("linkspan/")

    config.nav = expand(config.nav)
    return config


def pages_in(nav) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    each = nav.values() if isinstance(nav, dict) else nav
    return [page for part in each for page in pages_in(part)]


def on_files(files, config):
    generated = {
        "figures.md": figures.page(ROOT / "evidence"),
        "reference/python.md": python_page(),
    }
    for folder in REFERENCES:
        texts = headers.pages(headers_in(f"reference/{folder}/"))
        generated |= {HEADERS[file]: text for file, text in texts.items()}
    wanted = [page for page in pages_in(config.nav) if page not in generated]
    seen = set(generated)
    while wanted:
        site = wanted.pop().partition("#")[0]
        if site in seen:
            continue
        seen.add(site)
        repository = repository_of(site)
        if site.startswith("files/"):
            generated[site] = file_page(site.removeprefix("files/"))
            continue
        text = (ROOT / repository).read_text(encoding="utf-8")
        if not repository.startswith("docs/"):
            generated[site] = text
        wanted += [site_of(path) for link in links_of(text) if (path := resolved(link, repository))]
    for site, text in generated.items():
        files.append(File.generated(config, site, content=text))
    return files


def file_page(path: str) -> str:
    """Shows a file that is no Markdown, or the names in a folder."""
    if path.endswith("/index.md"):
        folder = ROOT / path.removesuffix("/index.md")
        name = folder.relative_to(ROOT).as_posix()
        listed = subprocess.check_output(["git", "ls-files", name], cwd=ROOT, text=True).split()
        lines = []
        for each in listed:
            page = site_of(each)
            shown = page.startswith("reference/") or each.startswith("docs/")
            link = f"[{each}]({posixpath.relpath(page, f'files/{name}')})"
            lines.append(f"- {link}" if shown else f"- `{each}`")
        return f"# {name}\n\n" + "\n".join(lines) + "\n"
    path = path.removesuffix(".md")
    text = (ROOT / path).read_text(encoding="utf-8")
    language = {".hpp": "cpp", ".h": "c", ".cuh": "cuda", ".cu": "cuda"}.get(
        pathlib.PurePath(path).suffix, pathlib.PurePath(path).suffix[1:]
    )
    return f"# {path}\n\n````{language}\n{text}````\n"


def python_page() -> str:
    modules = "\n\n".join(f"::: {name}" for name in PYTHON)
    return (
        "# Python\n\nWhat `import linkspan` gives, and its modules. [Python](../python.md) shows how "
        f"to use it.\n\n{modules}\n"
    )


def on_page_markdown(markdown, page, config, files):
    site = page.file.src_uri
    if site.startswith("files/"):
        page.meta["search"] = {"exclude": True}
    if site.startswith(("files/", "reference/")) or site == "figures.md":
        return markdown
    repository = repository_of(site)
    if site == "index.md":
        page.meta["hide"] = ["navigation", "toc"]

    def rewritten(match):
        path = resolved(match[1], repository)
        if path is None:
            return match[0]  # mkdocs says that it is dead
        to, _, anchor = site_of(path).partition("#")
        fragment = match[2] or (f"#{anchor}" if anchor else "")
        return posixpath.relpath(to, posixpath.dirname(site) or ".") + fragment

    parts = FENCE.split(markdown)
    for index, text in enumerate(parts):
        if index % 2:
            continue
        text = COMMENT.sub("", text)
        text = PICTURE.sub(lambda match: drawn(ROOT / "docs" / match[2], match[1]), text)
        text = PARAGRAPH.sub(r"\1\n", text)
        parts[index] = LINK.sub(rewritten, text)
    return "".join(parts)


def drawn(source: pathlib.Path, caption: str) -> str:
    """Returns a drawing by Graphviz; site.css gives its colours, for light and dark."""
    svg = subprocess.run(
        ["dot", "-Tsvg", str(source)], check=True, capture_output=True, text=True
    ).stdout
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r"<title>.*?</title>\n?|<!--.*?-->\n?| id=\"[^\"]*\"| fill=\"[^\"]*\"| stroke=\"[^\"]*\"",
        "",
        svg,
        flags=re.S,
    )
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{caption}" ', 1)
    caption = caption[0].upper() + caption[1:]
    return f'<figure class="picture">{svg.strip()}<figcaption>{caption}</figcaption></figure>'
