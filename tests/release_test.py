#!/usr/bin/env python3
"""Tests what scripts/release.py refuses, and what it writes, without building a wheel."""

import datetime
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import release  # noqa: E402

MARKS = {
    "Asio": b"asio", "CLI11": b"N3CLI3AppE", "FlatBuffers": b"flatbuffers", "OpenSSL": b"<appro@openssl.org>",
    "libgcc, libstdc++": b"basic_string::_M_create", "nanobind": b"nanobind", "nlohmann-json": b"N8nlohmannE",
}  # fmt: skip
# device_programs.cmake names a test only where tests are built.
FILES_OF_TESTS = ("tests", "fuzz", "tcpx", "nccl_net_plugin", "device_programs")
# The CMake files that a build without tests reads.
FILES_OF_CMAKE = [
    ROOT / "CMakeLists.txt", ROOT / "python/core/CMakeLists.txt", ROOT / "vcache/native/CMakeLists.txt",
    *ROOT.glob("integrations/*/CMakeLists.txt"),
    *(file for file in (ROOT / "cmake").glob("*.cmake") if file.stem not in FILES_OF_TESTS),
]  # fmt: skip


class WithFolder(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.folder = pathlib.Path(work.name)

    def wheel(self, name: str, files: dict[str, bytes]) -> pathlib.Path:
        with zipfile.ZipFile(self.folder / name, "w") as wheel:
            for path, data in files.items():
                wheel.writestr(path, data)
        return self.folder / name


class Version(WithFolder):
    def test_cmake_has_it_and_pyproject_reads_it_there(self):
        version = release.version_of(ROOT)
        self.assertRegex(version, r"^\d+\.\d+\.\d+$")
        pyproject = (ROOT / "pyproject.toml").read_text()
        self.assertIn('dynamic = ["version"]', pyproject)
        self.assertNotIn(version, pyproject)

    def test_none(self):
        (self.folder / "CMakeLists.txt").write_text("project(linkspan)\n")
        with self.assertRaisesRegex(release.Refused, r"no line project\(linkspan VERSION"):
            release.version_of(self.folder)


class Notes(unittest.TestCase):
    def test_the_top_section_alone(self):
        log = "# Changelog\n\n## 0.2.0, 2026-12-01\nNew.\n\n### Memory\n- a\n\n## 0.1.0\n- b\n"
        self.assertEqual(release.notes_of(log, "0.2.0"), "# linkspan 0.2.0\n\nNew.\n\n### Memory\n- a\n")

    def test_a_version_that_the_changelog_does_not_name(self):
        for heading in ("Unreleased", "0.1.0", "0.2.01", "0.2.0 or so"):
            with self.assertRaisesRegex(release.Refused, f'is "{heading}", the version in .* 0.2.0: name'):
                release.notes_of(f"# Changelog\n\n## {heading}\n- a\n\n## 0.2.0\n- b\n", "0.2.0")
        with self.assertRaisesRegex(release.Refused, 'is ""'):
            release.notes_of("# Changelog\n", "0.2.0")

    def test_a_section_without_text(self):
        with self.assertRaisesRegex(release.Refused, "says nothing of 0.2.0: write"):
            release.notes_of("# Changelog\n\n## 0.2.0\n\n## 0.1.0\n- b\n", "0.2.0")


class Commit(unittest.TestCase):
    def test_a_clean_tree_whose_tag_is_here_or_not_set(self):
        release.check_commit("", "", "c0ffee", "0.1.0")
        release.check_commit("", "c0ffee", "c0ffee", "0.1.0")

    def test_a_tree_that_differs(self):
        with self.assertRaisesRegex(release.Refused, "^dev and 1 more differ from the commit: commit or stash"):
            release.check_commit(" M dev\n?? a.cpp\n", "", "c0ffee", "0.1.0")

    def test_a_version_that_is_out(self):
        with self.assertRaisesRegex(release.Refused, "is the tag of dead, and HEAD is c0ffee: raise the"):
            release.check_commit("", "dead", "c0ffee", "0.1.0")

    def test_interpreters(self):
        with self.assertRaisesRegex(release.Refused, "/nonexistent does not run here: name one"):
            release.interpreters(["/nonexistent"])
        with self.assertRaisesRegex(release.Refused, "no interpreter for the wheels of cp3.*: name one of each"):
            release.interpreters([sys.executable])


class Contents(WithFolder):
    def test_what_a_wheel_has_is_read_from_its_binaries(self):
        elf = b"\x7fELF..."
        found = release.read(
            self.wheel("linkspan-1-py3.whl", {
                "linkspan/lib/a.so.0": elf + MARKS["OpenSSL"], "linkspan/bin/linkspan": elf + MARKS["CLI11"],
                "linkspan/a.py": MARKS["Asio"], ".nixl_cu12.mesonpy.libs/plugins/a.so": elf,
            })
        )  # fmt: skip
        self.assertEqual(found.components, ["CLI11", "OpenSSL"])
        sdist = self.folder / "linkspan-1.tar.gz"
        sdist.write_bytes(b"abc")
        self.assertEqual(release.read(sdist).components, [])
        self.assertRegex(release.read(sdist).sha256, "^ba7816bf")

    def test_a_library_of_the_host_is_refused(self):
        wheel = self.wheel("linkspan-1-py3.whl", {"linkspan.libs/libssl-0a1b.so.3": b"\x7fELF"})
        with self.assertRaisesRegex(release.Refused, "brings linkspan.libs/libssl-0a1b.so.3: link it statically"):
            release.read(wheel)

    def test_all_that_cmake_finds_is_known(self):
        known = {each.cmake for each in release.COMPONENTS} | {"Threads", "Python", "Python3"}
        for file in FILES_OF_CMAKE:
            found = set(re.findall(r"find_package\((\w+)", file.read_text()))
            self.assertEqual(found - known, set(), file)
        self.assertIn("asio.hpp", (ROOT / "CMakeLists.txt").read_text())

    def test_versions_are_those_that_are_installed(self):
        found = release.versions()
        self.assertEqual(found.keys(), {each.name for each in release.COMPONENTS})
        for name, (version, url) in found.items():
            self.assertRegex(version, r"^\d+(\.\d+)+$", name)
            self.assertIn(version, url)
        for full, version in (("1:1.22.1-1", "1.22.1"), ("2.0.8+dfsg1-2", "2.0.8"), ("3.0.19-1~deb12u2", "3.0.19")):
            self.assertEqual(release.upstream(full), version)

    def sbom(self, files: list[release.File]) -> str:
        of = {each.name: ("1.2", "pkg:deb/debian/a@1.2-1") for each in release.COMPONENTS}
        release.write_sbom(self.folder, "0.1.0", "c0ffee", datetime.datetime(2026, 1, 1), files, of)
        return (self.folder / release.SBOM).read_text()

    def test_the_sbom_relates_each_file_to_what_it_has(self):
        wheel = self.wheel("linkspan-0.1.0-py3.whl", {"linkspan/a.so": b"\x7fELF" + b" ".join(MARKS.values())})
        files = [release.read(wheel), release.File("linkspan_nixl-0.1.0-py3.whl", "0" * 64, ["OpenSSL"])]
        text = self.sbom(files)
        document = json.loads(text)
        self.assertEqual(document["spdxVersion"], "SPDX-2.3")
        self.assertEqual(document["creationInfo"]["created"], "2026-01-01T00:00:00Z")
        self.assertEqual(len(document["packages"]), 2 + len(release.COMPONENTS))
        (first, second) = document["packages"][:2]
        self.assertEqual((first["name"], first["checksums"][0]["checksumValue"]), ("linkspan", files[0].sha256))
        links = [(each["spdxElementId"], each["relatedSpdxElement"]) for each in document["relationships"]
                 if each["relationshipType"] == "STATIC_LINK"]  # fmt: skip
        self.assertEqual(len(links), len(release.COMPONENTS) + 1)
        self.assertIn((second["SPDXID"], "SPDXRef-OpenSSL"), links)
        self.assertEqual(text, self.sbom(files))

    def test_a_component_that_no_wheel_has_is_refused(self):
        with self.assertRaisesRegex(release.Refused, "no wheel has Asio, .*robin-map: mend COMPONENTS"):
            self.sbom([release.File("linkspan-0.1.0-py3.whl", "0" * 64, ["OpenSSL"])])

    def test_what_is_not_valid_is_refused(self):
        files = [release.File("a.whl", "no sum", [each.name for each in release.COMPONENTS])]
        with self.assertRaisesRegex(release.Refused, "sbom.spdx.json is not valid: .*64 lowercase"):
            self.sbom(files)


class Sdist(WithFolder):
    def test_has_what_git_has_and_no_more(self):
        tracked = ["dev", "src/a.cpp", "tests/a.cpp", "vcache/native/tests/b.cpp"]
        names = [f"linkspan-1/{each}" for each in ("PKG-INFO", "dev", "src/a.cpp", "vcache/native/tests/b.cpp")]
        self.assertEqual(release.faults_of_sdist(names, tracked, ["/tests"]), [])
        self.assertEqual(
            release.faults_of_sdist([*names[:2], "linkspan-1/core"], tracked[:2], ["/tests"]),
            ["lacks src/a.cpp", "has core beside"],
        )

    def test_cmake_reads_nothing_that_is_excluded(self):
        for file in FILES_OF_CMAKE:
            for top in (each.strip("/") for each in release.excluded()):
                self.assertNotRegex(file.read_text(), rf"(?<![\w/.]){top}/|SOURCE_DIR\}}/{top}/", file)


class Sums(WithFolder):
    def test_sha256sum_takes_them(self):
        for name in ("b", "a", "SHA256SUMS"):
            (self.folder / name).write_text(name)
        release.write_sums(self.folder)
        check = ["sha256sum", "-c", "SHA256SUMS"]
        said = subprocess.run(check, cwd=self.folder, check=True, capture_output=True, text=True).stdout
        self.assertEqual(said, "a: OK\nb: OK\n")


if __name__ == "__main__":
    unittest.main()
