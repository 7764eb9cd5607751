"""The metrics of Engines as Prometheus and the Grafana dashboard read them.

Needs Debian's prometheus in LINKSPAN_PROMETHEUS (unpacked by ./dev setup), and linkspan's tool in
LINKSPAN_TOOL.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from typing import Iterator

import pytest

import linkspan

REPOSITORY = pathlib.Path(__file__).parents[1]
GRAFANA = REPOSITORY / "tools/grafana"
PROGRAMS = pathlib.Path(os.environ.get("LINKSPAN_PROMETHEUS", "/nonexistent"), "usr/bin")
TOOL = os.environ["LINKSPAN_TOOL"]
LIMIT_S = 30
BYTES = 1 << 16

pytestmark = pytest.mark.skipif(
    not (PROGRAMS / "promtool").exists(), reason="needs Debian's prometheus"
)


class Traffic:
    """Two Engines of this process that write, notify and fail, until the test ends."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failure: BaseException | None = None

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        assert self.failure is None

    def _run(self) -> None:
        try:
            with linkspan.Engine("prefill") as here, linkspan.Engine("decode") as there:
                peer = here.connect(there.listen())
                ours = here.register_memory(bytearray(BYTES))
                there.publish("kv", there.register_memory(bytearray(BYTES)))
                theirs = peer.lookup("kv")
                while not self._stop.wait(0.02):
                    peer.write(ours, theirs, notification=b"1").wait(LIMIT_S)
                    there.notifications()
                    unmatched = peer.recv(1, bytearray(1))
                    unmatched.cancel()
                    with pytest.raises(linkspan.CanceledError):
                        unmatched.wait(LIMIT_S)
        except BaseException as failure:  # for the thread of the test
            self.failure = failure


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[str]:
    """The address at which `linkspan ps --listen` serves Engines with traffic."""
    with Traffic():
        command = [TOOL, "ps", str(os.getpid()), "--listen", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                yield server.stdout.readline().removeprefix("metrics at ").strip()
            finally:
                server.terminate()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return answer.read().decode()


def check(metrics: str) -> None:
    """promtool finds nothing to say."""
    command = [PROGRAMS / "promtool", "check", "metrics"]
    ran = subprocess.run(
        command, input=metrics, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_promtool_is_silent(served: str) -> None:
    merged = get(served)
    assert merged.count("# TYPE linkspan_engine_info gauge") == 1
    assert len(re.findall("(?m)^linkspan_engine_info{", merged)) == 2
    check(merged)
    with linkspan.Engine("alone") as engine:
        check(engine.metrics())


def test_promtool_speaks_of_a_wrong_name() -> None:
    with pytest.raises(AssertionError):
        check("# HELP linkspan_bytes Bytes.\n# TYPE linkspan_bytes counter\nlinkspan_bytes 1\n")


def queries() -> list[str]:
    """The dashboard's, with what Grafana puts in the place of its variables."""
    dashboard = json.loads((GRAFANA / "linkspan.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [
        target["expr"].replace("$__rate_interval", "10s").replace("$engine", ".*")
        for target in targets
    ]


def test_each_query_of_the_dashboard_has_rows(served: str, tmp_path: pathlib.Path) -> None:
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
        "scrape_configs": [
            {"job_name": "linkspan", "static_configs": [{"targets": [urllib.parse.urlsplit(served).netloc]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = [
        PROGRAMS / "prometheus", f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data", "--web.listen-address=127.0.0.1:0",
    ]  # fmt: skip
    wanted = queries()
    assert len(wanted) > 10
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as prometheus:
        try:
            assert prometheus.stderr is not None
            log, address = "", None
            while address is None or "ready to receive web requests" not in log:
                line = prometheus.stderr.readline()
                assert line, log
                log += line
                address = re.search(r"Listening on.*address=(\S+)", log)
            # A full pipe would stop it.
            threading.Thread(target=prometheus.stderr.read, daemon=True).start()
            limit = time.monotonic() + LIMIT_S
            while wanted and time.monotonic() < limit:
                query = urllib.parse.urlencode({"query": wanted[0]})
                answer = json.loads(get(f"http://{address[1]}/api/v1/query?{query}"))
                values = [float(row["value"][1]) for row in answer["data"]["result"]]
                if values and all(value == value for value in values):  # a quantile of nothing is NaN
                    del wanted[0]
                else:
                    time.sleep(0.2)
            assert wanted == []
        finally:
            prometheus.terminate()


def test_the_dashboard_is_what_its_program_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="needs grafana-foundation-sdk")
    subprocess.run(
        [sys.executable, GRAFANA / "dashboard.py", "--check"], check=True, timeout=LIMIT_S
    )
