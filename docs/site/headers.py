"""Makes a page of each public header, from what Doxygen reads there.

A page has the header's first comment, then its classes with their members and its functions, in the
order of the file. A C header, whose comments are not Doxygen's, is shown section by section.
"""

import itertools
import pathlib
import re
import subprocess
import tempfile
import textwrap
import xml.etree.ElementTree as ET

DOXYGEN = """
INPUT = {inputs}
OUTPUT_DIRECTORY = {folder}
EXTENSION_MAPPING = cuh=C++
EXTRACT_ALL = YES
QUIET = YES
WARNINGS = NO
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = LINKSPAN_API= LINKSPAN_DEVICE= LINKSPAN_HOST_DEVICE= LINKSPAN_COLD=
"""
INTERNAL = re.compile(r"(^|::)(detail|engine|memory|std)(::|$)")
SECTION = re.compile(r"^/\* -{4} (.*?) -+ \*/$", re.M)


class Header:
    """One page while it is made: Markdown and descriptions by Doxygen, and the anchors given."""

    def __init__(self, file: pathlib.Path):
        self.source = file.read_text(encoding="utf-8").splitlines()
        self.name = included(file)
        self.body: list[str | ET.Element] = []
        self.anchors: set[str] = set()

    def heading(self, depth: int, title: str) -> str:
        """Adds a heading, and returns its anchor: as mkdocs makes them."""
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        unique, count = anchor, 0
        while unique in self.anchors:
            count += 1
            unique = f"{anchor}_{count}"
        self.anchors.add(unique)
        self.body.append("#" * depth + " " + title.replace("_", r"\_"))
        return unique

    def quote(self, first: int, last: int) -> None:
        lines = [line.replace("LINKSPAN_API ", "") for line in self.source[first - 1 : last]]
        self.code("\n".join(lines))

    def code(self, text: str, language: str = "cpp") -> None:
        self.body.append(f"```{language}\n{text}\n```")


def included(file: pathlib.Path) -> str:
    """Returns the name by which programs include it."""
    return file.as_posix().partition("/include/")[2]


def page_name(header: str) -> str:
    return header.removeprefix("linkspan/").rpartition(".")[0].replace("/", "_") + ".md"


def pages(files: list[pathlib.Path]) -> dict[pathlib.Path, str]:
    """Returns Markdown; links between the pages are right if they lie in one folder."""
    read = {file: Header(file) for file in files}
    c = [file for file in files if file.suffix == ".h"]
    for file in c:
        show_sections(read[file])
    links = show_declarations(read) if len(c) < len(files) else {}
    return {file: text_of(header, links) for file, header in read.items()}


def text_of(header: Header, links: dict) -> str:
    parts = [
        each if isinstance(each, str) else prose(each, links, header.name) for each in header.body
    ]
    return "\n\n".join([f"# {header.name}", preface(header.source), *filter(None, parts)]) + "\n"


def preface(source: list[str]) -> str:
    """Returns the header's first comment: indented lines are code, `Threads:` begins a paragraph."""
    comment = itertools.takewhile(re.compile(r"//|/\*| \*").match, source)
    lines = [re.sub(r"^(//|/\*| \*/?) ?", "", line) for line in comment]
    lines[0] = lines[0].partition(" - ")[2]
    blocks, item = [lines[0][0].upper() + lines[0][1:]], False
    for line in lines[1:]:
        code = line.startswith("  ") and not item
        begins = re.match(r"[A-Z][\w ]*: |- ", line) is not None
        item = line.startswith("- ") or (item and line != "")
        if begins or line == "" or code != blocks[-1].startswith("  "):
            blocks.append(line)
        else:
            blocks[-1] += "\n" + (line if code else line.strip())
    blocks = [block for block in blocks if block]
    return "\n\n".join(
        f"```cpp\n{textwrap.dedent(block)}\n```" if block.startswith("  ") else escaped(block)
        for block in blocks
    )


def show_sections(header: Header) -> None:
    text = "\n".join(header.source)
    text = text[text.index("*/") + 2 :]
    begin, *sections = SECTION.split(text)
    for title, body in zip(["Begin", *sections[::2]], [begin, *sections[1::2]]):
        header.heading(2, title[0].upper() + title[1:])
        header.code(body.strip(), "c")


def compounds_of(files) -> list[ET.Element]:
    """Returns what Doxygen calls compounds: classes, structs, namespaces, files."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = " ".join(map(str, files))
        subprocess.run(
            ["doxygen", "-"],
            input=DOXYGEN.format(inputs=inputs, folder=folder),
            text=True,
            check=True,
            cwd=folder,  # places are absolute then
        )
        trees = [ET.parse(file) for file in sorted(pathlib.Path(folder, "xml").glob("*.xml"))]
    return [each for tree in trees for each in tree.getroot().iterfind("compounddef")]


def show_declarations(read: dict[pathlib.Path, Header]) -> dict[str, tuple[str, str]]:
    """Fills the headers; returns the header and anchor of each of Doxygen's ids."""
    public = [c for c in compounds_of(read) if not INTERNAL.search(c.findtext("compoundname"))]
    classes = [c for c in public if c.get("kind") in ("class", "struct")]
    nested = {inner.get("refid") for c in classes for inner in c.iterfind("innerclass")}
    found: dict[pathlib.Path, list[ET.Element]] = {file: [] for file in read}
    declarations = [c for c in classes if c.get("id") not in nested]
    for compound in public:
        if compound.get("kind") == "namespace":
            declarations += compound.iterfind("sectiondef/memberdef")
    for node in declarations:
        found[pathlib.Path(node.find("location").get("file"))].append(node)
    links = {}
    for file, nodes in found.items():
        show(read[file], by_line(nodes), links, 2)
    return links


def show(header: Header, nodes: list, links: dict, depth: int) -> None:
    for group in grouped(header, nodes):
        kind, place = group[0].get("kind"), group[0].find("location")
        anchor = header.heading(depth, ", ".join(dict.fromkeys(map(title, group))))
        links.update({node.get("id"): (header.name, anchor) for node in group})
        if kind in ("struct", "enum") and int(place.get("bodyend", -1)) > 0:
            header.quote(int(place.get("bodystart")), int(place.get("bodyend")))
        else:
            header.code(
                f"class {title(group[0])};" if kind == "class" else "\n".join(map(declared, group))
            )
        for node in group:
            header.body += descriptions(node)
        if kind == "class":
            show(header, by_line(group[0].iterfind("sectiondef/memberdef")), links, depth + 1)


def descriptions(node) -> list[ET.Element]:
    return [node.find("briefdescription"), node.find("detaileddescription")]


def title(node) -> str:
    name = (node.findtext("name") or node.findtext("compoundname")).rpartition("::")[2]
    return f"{name}()" if node.get("kind") == "function" else name


def by_line(nodes) -> list[tuple[int, ET.Element]]:
    """Sorts declarations as they stand in their file, without what is private or declared ahead."""
    placed = []
    for node in nodes:
        place = node.find("location")
        line = int(place.get("line" if node.tag == "memberdef" else "bodystart", 0))
        if line > 0 and node.get("prot") == "public" and node.get("kind") != "friend":
            placed.append((line, node))
    return sorted(placed, key=lambda each: each[0])


def grouped(header: Header, nodes: list) -> list[list]:
    """Puts a declaration without a comment to the one of its kind in the line before, which has it."""
    groups, last = [], 0
    for line, node in nodes:
        before = groups[-1][-1] if groups else None
        if (
            before is None
            or family(node) != family(before)
            or any(map(len, descriptions(node)))
            or "" in header.source[last : line - 1]
            or "///<" in header.source[last - 1]
        ):
            groups.append([])
        groups[-1].append(node)
        last = line
    return groups


def family(node) -> str:
    """Returns what declarations of one comment share: a function's type, without its arguments."""
    if node.get("kind") != "function":
        return node.get("id")
    kept = plain(node.find("type")).partition("<")[0]
    return "" if node.findtext("name") == "operator=" else kept  # as constructors


def plain(node) -> str:
    text = "".join(node.itertext()) if node is not None else ""
    return re.sub(r" +([>&*])", r"\1", text.replace("< ", "<")).strip()


def declared(node) -> str:
    """Returns the declaration of a function, variable or alias, wrapped at 90 columns."""
    kind, name, kept = node.get("kind"), node.findtext("name"), plain(node.find("type"))
    head = "static " if node.get("static") == "yes" else ""
    template = node.find("templateparamlist")
    if template is not None:
        head = f"template <{', '.join(parameters(template))}>\n" + head
    if kind == "typedef":
        return f"{head}using {name} = {kept};"
    if kind == "variable":
        start = (node.findtext("initializer") or "").strip()
        return f"{head}{kept} {name}{' ' + start if start else ''};"
    tail = node.findtext("argsstring").rpartition(")")[2].replace("=", " = ").strip()
    params = parameters(node)
    start = f"{head}{kept} {name}(".lstrip()
    one = f"{start}{', '.join(params)}) {tail}".strip() + ";"
    if len(one.rpartition("\n")[2]) <= 90:
        return one
    return f"{start}\n    " + ",\n    ".join(params) + f") {tail}".rstrip() + ";"


def parameters(node) -> list[str]:
    texts = []
    for each in node.iterfind("param"):
        default = plain(each.find("defval"))
        named = f"{plain(each.find('type'))} {each.findtext('declname') or ''}".strip()
        texts.append(f"{named} = {default}" if default else named)
    return texts


def prose(node, links: dict, page: str) -> str:
    """Returns Doxygen's description as Markdown."""

    def inside(element) -> str:
        return escaped(element.text) + "".join(one(each) + escaped(each.tail) for each in element)

    def one(element) -> str:
        if element.tag == "computeroutput":
            return f"`{''.join(element.itertext())}`"
        if element.tag == "ref" and element.get("refid") in links:
            header, anchor = links[element.get("refid")]
            target = "" if header == page else page_name(header)
            return f"[{inside(element)}]({target}#{anchor})"
        if element.tag == "itemizedlist":
            return "\n\n" + "\n".join(f"- {inside(item).strip()}" for item in element) + "\n\n"
        if element.tag in ("programlisting", "verbatim"):
            return f"\n\n```cpp\n{''.join(element.itertext())}\n```\n\n"
        if element.tag == "para":
            return inside(element).strip() + "\n\n"
        return inside(element)

    return inside(node).strip()


def escaped(text: str | None) -> str:
    """Returns text without the meaning that Markdown gives to its signs, but for `code`."""
    parts = (text or "").split("`")
    for index in range(0, len(parts), 2):
        part = parts[index].replace("&", "&amp;").replace("<", "&lt;")
        parts[index] = re.sub(r"([*_\[\]|])", r"\\\1", part)
    return "`".join(parts)
