"""Writes wheels that put one of linkspan's plugins where a package of another project looks for it."""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

LICENSE = pathlib.Path(__file__).resolve().parents[1] / "LICENSE.txt"


def version_and_platform(wheel: pathlib.Path) -> tuple[str, str]:
    """Of a wheel of linkspan, by its name. SystemExit: it is named otherwise."""
    named = re.fullmatch(r"linkspan-([^-]+)-[^-]+-[^-]+-([^-]+)\.whl", wheel.name)
    if named is None:
        sys.exit(f"{wheel.name} is not named as a wheel of linkspan")
    return named[1], named[2]


def write(
    name: str,
    summary: str,
    plugins: dict[str, bytes],
    source: pathlib.Path,
    folder: pathlib.Path,
    needs_linkspan: bool = False,
) -> pathlib.Path:
    """Writes the wheel NAME with `plugins` by their path, of the version and for the platforms of
    linkspan's wheel `source`, which it needs at run time if they call that one's library. Returns its
    file, which has the same bytes for the same plugins."""
    version, platform = version_and_platform(source)
    distribution = name.replace("-", "_")
    info = f"{distribution}-{version}.dist-info"
    tags = "".join(f"Tag: py3-none-{each}\n" for each in platform.split("."))
    files = plugins | {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n"
            "Requires-Python: >=3.10\nLicense-File: LICENSE.txt\n"
            + (f"Requires-Dist: linkspan=={version}\n" if needs_linkspan else "")
        ).encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: linkspan\nRoot-Is-Purelib: false\n{tags}"
        ).encode(),
        f"{info}/LICENSE.txt": LICENSE.read_bytes(),
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    made = folder / f"{distribution}-{version}-py3-none-{platform}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            member = zipfile.ZipInfo(path)  # of 1980
            member.external_attr = (0o755 if path.endswith(".so") else 0o644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(member, content)
    return made
