#!/usr/bin/env python3
"""Makes a release of the commit that is checked out, in out/dist/VERSION: ./dev release [PYTHON...]

It has the sdist, wheels for the interpreters (./dev wheel --old-glibc --aarch64; without any,
python3.10, 3.11 and 3.12), what is in them (sbom.spdx.json), the notes (NOTES.md) and SHA256SUMS. Each
wheel for this machine is tried in an environment of its own, and one is built from the sdist alone;
tests/clean_roots.sh --aarch64 tries the others. Nothing is tagged or uploaded.
"""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import importlib.util
import itertools
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.parse
import uuid
import zipfile

import abi

ROOT = pathlib.Path(__file__).resolve().parent.parent
SBOM = "sbom.spdx.json"
VERSION = re.compile(r"^project\(linkspan VERSION ([\d.]+)", re.MULTILINE)
MACHINES = (platform.machine(), "aarch64")  # the first one's wheels are tried
SDIST = "linkspan-{version}.tar.gz"
WHEELS = (
    "linkspan-{version}-cp310-cp310-*_{machine}.whl", "linkspan-{version}-cp311-cp311-*_{machine}.whl",
    "linkspan-{version}-cp312-abi3-*_{machine}.whl", "linkspan_nixl-{version}-py3-none-*_{machine}.whl",
    "linkspan_nccl-{version}-py3-none-*_{machine}.whl",
)  # fmt: skip
REMEDY = "name one of each, as ./dev release python3.10 python3.11 python3.12"


class Refused(Exception):
    """Its text says what is wrong, and the remedy."""


def output_of(*command: object) -> str:
    return subprocess.run([*map(str, command)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


# ---- before anything is built -------------------------------------------------------------------


def version_of(root: pathlib.Path) -> str:
    """Reads the version where it is kept, as pyproject.toml does."""
    found = VERSION.search((root / "CMakeLists.txt").read_text())
    if found is None:
        raise Refused("CMakeLists.txt has no line project(linkspan VERSION ...")
    return found[1]


def notes_of(changelog: str, version: str) -> str:
    """Returns the top section. Its heading is the version, or the version and a date."""
    _, *sections = re.split(r"^## ", changelog, flags=re.MULTILINE)
    heading, _, body = (sections or [""])[0].partition("\n")
    if not re.fullmatch(rf"{re.escape(version)}(, \d{{4}}-\d\d-\d\d)?", heading):
        raise Refused(
            f'the top section of CHANGELOG.md is "{heading}", the version in CMakeLists.txt {version}: '
            f'name the section "## {version}", or set the other version'
        )
    if not body.strip():
        raise Refused(f"CHANGELOG.md says nothing of {version}: write what is new for users")
    return f"# linkspan {version}\n\n{body.strip()}\n"


def check_commit(status: str, tagged: str, head: str, version: str) -> None:
    """Takes what `git status --porcelain` prints, and the commits of the version's tag and of HEAD."""
    if status:
        first, *more = (line[3:] for line in status.splitlines())
        others = f" and {len(more)} more" if more else ""
        raise Refused(f"{first}{others} differ from the commit: commit or stash what is changed")
    if tagged not in ("", head):
        raise Refused(
            f"v{version} is the tag of {tagged[:12]}, and HEAD is {head[:12]}: raise the version, or check out the tag"
        )


def interpreters(names: list[str]) -> dict[str, str]:
    """Returns {"cp310": a file, ...}, one for each kind of wheel."""
    found = {}
    ask = "import sys; print('cp3%d' % sys.version_info[1], sys.executable)"
    for name in names or ["python3.10", "python3.11", "python3.12"]:
        try:
            said = subprocess.run([name, "-c", ask], check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError):
            raise Refused(f"{name} does not run here: {REMEDY}") from None
        tag, file = said.split(maxsplit=1)
        found["cp312" if int(tag[3:]) >= 12 else tag] = file.strip()
    if missing := {"cp310", "cp311", "cp312"} - found.keys():
        raise Refused(f"no interpreter for the wheels of {', '.join(sorted(missing))}: {REMEDY}")
    return found


# ---- what is in the wheels ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Component:
    """What of others is compiled or linked into our binaries."""

    name: str
    license: str
    mark: bytes  # a pattern that binaries with it have
    package: str = ""  # Debian's; of PyPI if there is none
    cmake: str = ""  # by which CMake finds it


COMPONENTS = (
    Component("Asio", "BSL-1.0", rb"asio", "libasio-dev", "asio.hpp"),
    Component("CLI11", "BSD-3-Clause", rb"N3CLI", "libcli11-dev", "CLI11"),
    Component("FlatBuffers", "Apache-2.0", rb"flatbuffers", "libflatbuffers-dev", "FlatBuffers"),
    Component("libgcc, libstdc++", "GPL-3.0-or-later WITH GCC-exception-3.1", rb"basic_string::_M_create",
              "libstdc++-12-dev"),
    Component("nanobind", "BSD-3-Clause", rb"nanobind", cmake="nanobind"),
    Component("nlohmann-json", "MIT", rb"8nlohmann", "nlohmann-json3-dev", "nlohmann_json"),
    Component("OpenSSL", "Apache-2.0", rb"appro@openssl\.org", "libssl-dev", "OpenSSL"),
    Component("robin-map", "MIT", rb"nanobind"),  # which nanobind brings
)  # fmt: skip


@dataclasses.dataclass
class File:
    """A file of the release, with the names of what is in it."""

    name: str
    sha256: str
    components: list[str]


def upstream(version: str) -> str:
    """Returns 1.22.1 for Debian's 1:1.22.1-1, 2.0.8 for 2.0.8+dfsg1-2."""
    return re.split(r"[-+~]", version.split(":")[-1])[0]


def versions() -> dict[str, tuple[str, str]]:
    """Returns {component: (its version, its package URL)}, as it is installed."""
    found = {}
    for each in COMPONENTS:
        if each.package:
            full = output_of("dpkg-query", "-W", "-f", "${Version}", each.package)
            quoted = urllib.parse.quote(full, safe="~")
            found[each.name] = upstream(full), f"pkg:deb/debian/{each.package}@{quoted}"
        elif each.name == "nanobind":
            version = importlib.metadata.version("nanobind")
            found[each.name] = version, f"pkg:pypi/nanobind@{version}"
    nanobind = pathlib.Path(importlib.util.find_spec("nanobind").origin).parent
    header = (nanobind / "ext/robin_map/include/tsl/robin_growth_policy.h").read_text()
    version = ".".join(re.findall(r"#define TSL_RH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    found["robin-map"] = version, f"pkg:github/Tessil/robin-map@v{version}"
    return found


def read(file: pathlib.Path) -> File:
    """Reads a file of the release. Refused: a wheel into which auditwheel put a library of the host."""
    found = File(file.name, hashlib.sha256(file.read_bytes()).hexdigest(), [])
    if file.suffix != ".whl":
        return found
    with zipfile.ZipFile(file) as wheel:
        if brought := [name for name in wheel.namelist() if re.match(r"linkspan\w*\.libs/.", name)]:
            raise Refused(f"{file.name} brings {brought[0]}: link it statically, and list it in scripts/release.py")
        binaries = [data for name in wheel.namelist() if (data := wheel.read(name))[:4] == b"\x7fELF"]
    found.components = [
        each.name for each in COMPONENTS if any(re.search(each.mark, data) for data in binaries)
    ]
    return found


def write_sbom(folder: pathlib.Path, version: str, commit: str, made: datetime.datetime,
               files: list[File], of: dict[str, tuple[str, str]]) -> None:  # fmt: skip
    """Writes the list in SPDX 2.3, which has the same bytes for the same files."""
    from spdx_tools.common.spdx_licensing import spdx_licensing
    from spdx_tools.spdx import model as spdx
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
    from spdx_tools.spdx.writer.json.json_writer import write_document_to_file

    if unused := {each.name for each in COMPONENTS} - {name for file in files for name in file.components}:
        raise Refused(f"no wheel has {', '.join(sorted(unused))}: mend COMPONENTS in scripts/release.py")
    hashes = "".join(file.sha256 for file in files)
    document = spdx.Document(
        spdx.CreationInfo(
            spdx_version="SPDX-2.3",
            spdx_id="SPDXRef-DOCUMENT",
            name=f"linkspan-{version}",
            data_license="CC0-1.0",
            document_namespace=f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, hashes)}",
            creators=[spdx.Actor(spdx.ActorType.TOOL, "linkspan-scripts-release")],
            created=made,
        )
    )

    def identifier(name: str) -> str:
        return "SPDXRef-" + re.sub(r"[^\w.]+", "-", name).replace("_", "-").strip("-")

    def relate(one: str, how: str, other: str) -> None:
        document.relationships.append(spdx.Relationship(one, spdx.RelationshipType[how], other))

    def add(name: str, version: str, license: str, named: str, **more: object) -> None:
        document.packages.append(
            spdx.Package(identifier(named), name, spdx.SpdxNoAssertion(), version=version, files_analyzed=False,
                         license_declared=spdx_licensing.parse(license), **more)
        )  # fmt: skip

    for file in files:
        name = file.name.split("-")[0].replace("_", "-")
        sums = [spdx.Checksum(spdx.ChecksumAlgorithm.SHA256, file.sha256)]
        add(name, version, "Apache-2.0", file.name, file_name=file.name, checksums=sums, source_info=f"commit {commit}")
        relate("SPDXRef-DOCUMENT", "DESCRIBES", identifier(file.name))
        for each in file.components:
            relate(identifier(file.name), "STATIC_LINK", identifier(each))
    for each in COMPONENTS:
        number, url = of[each.name]
        purl = spdx.ExternalPackageRef(spdx.ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", url)
        add(each.name, number, each.license, each.name, external_references=[purl])
    if faults := validate_full_spdx_document(document):
        raise Refused(f"{SBOM} is not valid: " + "; ".join(each.validation_message for each in faults))
    write_document_to_file(document, str(folder / SBOM), validate=False)


# ---- what is tried ------------------------------------------------------------------------------


def faults_of_sdist(names: list[str], tracked: list[str], without: list[str]) -> list[str]:
    """Compares the files of the sdist with those of git outside the folders of `without`."""
    wanted = {each for each in tracked if not any(f"/{each}".startswith(f"{top}/") for top in without)}
    has = {name.partition("/")[2] for name in names} - {"PKG-INFO"}
    lacks, beside = sorted(wanted - has), sorted(has - wanted)
    return [f"lacks {each}" for each in lacks] + [f"has {each} beside" for each in beside]


def excluded() -> list[str]:
    """Returns the folders that no sdist has, each as "/tests"."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["sdist"]["exclude"]


def check_sdist(sdist: pathlib.Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive if not member.isdir()]
    if faults := faults_of_sdist(names, output_of("git", "ls-files").splitlines(), excluded()):
        raise Refused(f"{sdist.name} {faults[0]}, and {len(faults) - 1} more: mend sdist.exclude in pyproject.toml")


def build_sdist(sdist: pathlib.Path, python: str, wheel: pathlib.Path) -> None:
    """Builds a wheel where there is nothing but the sdist, as `wheel` was built from the tree."""
    with tempfile.TemporaryDirectory(dir=ROOT / "out") as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        top = pathlib.Path(folder, sdist.name.removesuffix(".tar.gz"))
        subprocess.run([top / "dev", "wheel", "--old-glibc", python], check=True)
        (built,) = (top / "out/wheels").glob("linkspan-*.whl")
        one, other = (set(zipfile.ZipFile(each).namelist()) for each in (built, wheel))
        if one != other:
            raise Refused(f"built from {sdist.name} the wheel has other files: {', '.join(sorted(one ^ other))}")


def try_wheels(wheels: list[pathlib.Path], python: str, version: str) -> None:
    """Installs the wheels where nothing else is, and copies between two processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        places = f"{folder}/venv/bin:/usr/bin:/bin"
        for command in (
            ["python", "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", *wheels],
            ["python", "-c", "import nvlink_transfer_engine"],
            ["python", "-c", f"import linkspan; assert linkspan.__version__ == '{version}', linkspan.__version__"],
            ["linkspan", "--version"],
            ["linkspan", "doctor"],
            ["linkspan", "demo", "--quick"],
            ["linkspan", "nixl", "--folder"],
            ["linkspan", "nccl", "--check"],
        ):
            words = [f"{folder}/venv/bin/{command[0]}", *map(str, command[1:])]
            done = subprocess.run(words, cwd=folder, env={"PATH": places, "HOME": name, "LANG": "C.UTF-8"},
                                  check=False, capture_output=True, text=True, timeout=300)  # fmt: skip
            if done.returncode:
                said = f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}"
                raise Refused(f"{wheels[0].name} does not work where nothing else is: {said}")


# ---- the release --------------------------------------------------------------------------------


def write_sums(folder: pathlib.Path) -> None:
    """Writes them as sha256sum does."""
    files = sorted(each for each in folder.iterdir() if each.name != "SHA256SUMS")
    sums = (f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files)
    (folder / "SHA256SUMS").write_text("".join(sums))


def the_file(folder: pathlib.Path, pattern: str, version: str, machine: str = "") -> pathlib.Path:
    name = pattern.format(version=version, machine=machine)
    found = list(folder.glob(name))
    if len(found) != 1:
        raise Refused(f"{folder} has {len(found)} of {name}: see what ./dev wheel said")
    return found[0]


def release(names: list[str]) -> pathlib.Path:
    version = version_of(ROOT)
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(), version)
    head = output_of("git", "rev-parse", "HEAD").strip()
    tagged = output_of("git", "for-each-ref", "--format=%(*objectname)%(objectname)", f"refs/tags/v{version}")
    check_commit(output_of("git", "status", "--porcelain"), tagged.strip()[:40], head, version)
    if (ROOT / abi.DUMP).read_text() != abi.dump_of(ROOT):
        raise Refused(f"{abi.DUMP} is not that of this linkspan.h: ./dev abi, and commit it")
    pythons = interpreters(names)

    folder = ROOT / "out/dist" / version
    shutil.rmtree(folder, ignore_errors=True)
    command = ["wheel", "--old-glibc", "--aarch64", "--to", folder, *pythons.values()]
    subprocess.run([ROOT / "dev", *command], check=True)
    sdist = the_file(folder, SDIST, version)
    made = {machine: [the_file(folder, each, version, machine) for each in WHEELS] for machine in MACHINES}

    check_sdist(sdist)
    *linkspan, nixl, nccl = made[MACHINES[0]]
    for wheel in linkspan:
        try_wheels([wheel, nixl, nccl], pythons[wheel.name.split("-")[2]], version)
    build_sdist(sdist, pythons["cp312"], linkspan[-1])
    second = int(output_of("git", "log", "-1", "--format=%ct"))
    committed = datetime.datetime.fromtimestamp(second, datetime.timezone.utc).replace(tzinfo=None)
    files = [read(each) for each in (sdist, *itertools.chain(*made.values()))]
    write_sbom(folder, version, head, committed, files, versions())
    (folder / "NOTES.md").write_text(notes)
    write_sums(folder)
    return folder


def main() -> int:
    try:
        folder = release(sys.argv[1:])
    except (Refused, abi.Wrong) as refused:
        print(f"release: {refused}", file=sys.stderr)
        return 1
    print((folder / "SHA256SUMS").read_text(), end="")
    print(f"release: {folder.relative_to(ROOT)} is complete; tag the commit v{folder.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
