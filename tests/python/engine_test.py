"""What editors, inspect and help() show of the Engine, and the Descriptors that it makes."""

from __future__ import annotations

import inspect
import pathlib
import re

import pytest

import linkspan


def options_of_cpp() -> dict[str, str]:
    """Returns the members of EngineOptions with their initialisers, as in the header."""
    header = pathlib.Path(linkspan.include_dir(), "linkspan", "engine.hpp").read_text("utf-8")
    struct = header[header.index("struct EngineOptions {") : header.index("struct ConnectOptions")]
    return dict(re.findall(r"^  [^/\n]* (\w+)(?: = |\{)(\w*)\}?;", struct, re.MULTILINE))


def test_the_signature_has_each_option_with_the_default_of_cpp() -> None:
    options = dict(inspect.signature(linkspan.Engine).parameters)
    assert options.pop("name").default == ""
    cpp = options_of_cpp()
    assert set(options) == set(cpp) - {"name", "log"}  # log: a function, which Python does not take
    same = {"": (None, ""), "0": (None, 0), "false": (False,), "true": (True,)}
    for name, option in options.items():
        assert option.kind is option.KEYWORD_ONLY, name
        assert option.default in same[cpp[name]], name
        assert option.annotation is not option.empty, name
        assert re.search(rf"^{name}: [A-Z]", inspect.getdoc(linkspan.Engine), re.MULTILINE), name


@pytest.mark.parametrize(
    "own", [linkspan.Engine, linkspan.Peer, linkspan.Region, linkspan.RemoteRegion,
            linkspan.Descriptor,
            linkspan.RegionSet, linkspan.Transfer, linkspan.Prepared, linkspan.Pages,
            linkspan.Strides, linkspan.CompletionQueue, linkspan.Explanation, linkspan.PathRefusal]
)
def test_the_names_are_those_of_cpp(own: type) -> None:
    headers = pathlib.Path(linkspan.include_dir(), "linkspan").glob("*.hpp")
    code = "".join(re.sub("//.*", "", file.read_text("utf-8")) for file in headers)
    public = {name for name in dir(own) if not name.startswith("_")}
    assert public - set(re.findall(r"\w+", code)) <= {"fileno", "to_bytes", "from_bytes"}


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sokcet_dir'"):
        linkspan.Engine("wrong", sokcet_dir="/run")
    with pytest.raises(TypeError, match="positional argument"):
        linkspan.Engine("wrong", "/run")
    with linkspan.Engine(use_gpu=False, transport=None, copy_ctas=None, transfer_deadline=None):
        pass


def test_peers_are_found_by_addresses_and_names() -> None:
    with linkspan.Engine("far") as far, linkspan.Engine("near") as near:
        assert far.addresses == ""
        far.listen()
        far.listen("tcp:127.0.0.1:0")
        unix, tcp = far.addresses.split(",")
        assert unix.startswith("unix:") and tcp.startswith(far.address + "#")
        peer = near.connect(far.addresses)
        assert near.find_peer("far").id == peer.id
        assert [each.id for each in near.peers()] == [peer.id]
        with pytest.raises(linkspan.NotFoundError, match='"nobody"'):
            near.find_peer("nobody")


def test_many_regions_are_looked_up_at_once() -> None:
    with linkspan.Engine("far") as far, linkspan.Engine("near") as near:
        far.listen()
        peer = near.connect(far.addresses)
        regions = [far.allocate_shared(4096 * (i + 1)) for i in range(3)]
        for i, region in enumerate(regions):
            far.publish(f"layer/{i}", region)
        remotes = peer.lookup_all([f"layer/{i}" for i in range(3)])
        assert [each.bytes for each in remotes] == [4096, 8192, 12288]
        with pytest.raises(linkspan.NotFoundError, match="layer/9"):
            peer.lookup_all(["layer/0", "layer/9"])
        more = [far.allocate_shared(4096) for _ in range(2)]
        far.publish("set", more[:1])
        before = peer.lookup_set("set")
        far.publish("set", more)
        after = peer.lookup_set("set", known=before)
        assert after.version > before.version and len(after.regions) == 2
