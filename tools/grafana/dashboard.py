#!/usr/bin/env python3
"""Writes linkspan.json, a Grafana dashboard over the metrics of `linkspan ps --listen`.

    dashboard.py [--check]     --check: fail if the file would change

tests/prometheus_test.py runs each query against Engines that move bytes.
"""

from __future__ import annotations

import pathlib
import sys

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
)

FILE = pathlib.Path(__file__).parent / "linkspan.json"
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
ENGINE = 'engine=~"$engine"'
WHO = "{{engine}} to {{name}}"


def rate(metric: str, by: str, labels: str = ENGINE) -> str:
    return f"sum by ({by}) (rate(linkspan_{metric}{{{labels}}}[$__rate_interval]))"


def quantile(share: float) -> str:
    buckets = rate("transfer_seconds_bucket", "le, path")
    return f"histogram_quantile({share}, {buckets})"


# title, unit, what it shows, {legend: query}
PANELS = {
    "Bytes": [
        ("Throughput by peer", "Bps", "Bytes of transfers that went well.",
         {WHO: rate("bytes_total", "engine, name")}),
        ("Throughput by path", "Bps", "The same by the path that each transfer took.",
         {"{{path}}": rate("bytes_total", "path")}),
        ("Blocks by copier", "ops", "Blocks that each copier has copied, for peers as well.",
         {"{{copier}}": rate("copied_blocks_total", "copier")}),
    ],
    "Transfers": [
        ("Transfers", "ops", "Transfers that went well.",
         {"{{op}} by {{path}}": rate("transfers_ok_total", "op, path")}),
        ("Time until quiet", "s", "From the submission until the transfer was quiet.",
         {"p50 {{path}}": quantile(0.5), "p99 {{path}}": quantile(0.99)}),
        ("Failures", "ops", "Transfers that ended otherwise, and batches that changed transport.",
         {"{{code}}": rate("transfers_failed_total", "code"),
          "failovers of {{engine}}": rate("failovers_total", "engine")}),
    ],
    "State": [
        ("Outstanding transfers", "short", "Transfers that are not quiet, and those that wait for room.",
         {f"{WHO}": f"sum by (engine, name) (linkspan_transfers_outstanding{{{ENGINE}}})",
          f"{WHO}, waiting": f"sum by (engine, name) (linkspan_transfers_queued{{{ENGINE}}})"}),
        ("Peers and regions", "short", "Peers that are up, and registered regions.",
         {"peers of {{engine}}": f"sum by (engine) (linkspan_peers{{{ENGINE}}})",
          "regions of {{engine}}": f"sum by (engine) (linkspan_regions{{{ENGINE}}})"}),
        ("Notifications", "ops", "Notifications that were sent and that came.",
         {"sent by {{engine}}": rate("notifications_sent_total", "engine"),
          "received by {{engine}}": rate("notifications_received_total", "engine")}),
    ],
}  # fmt: skip


def panel(title: str, unit: str, what: str, queries: dict[str, str]) -> Panel:
    made = Panel().title(title).unit(unit).description(what).datasource(SOURCE).span(8).height(8)
    for number, (legend, query) in enumerate(queries.items()):
        target = Dataquery().ref_id("ABCD"[number]).expr(query).legend_format(legend)
        made.with_target(target.datasource(SOURCE))
    return made


def dashboard() -> str:
    made = (
        Dashboard("linkspan")
        .uid("linkspan")
        .tags(["linkspan"])
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(
            QueryVariable("engine")
            .label("Engine")
            .datasource(SOURCE)
            .query("label_values(linkspan_engine_info, engine)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    for row, panels in PANELS.items():
        made.with_row(Row(row))
        for each in panels:
            made.with_panel(panel(*each))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def main() -> None:
    text = dashboard()
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text() != text:
            sys.exit(f"{FILE} is not what {pathlib.Path(__file__).name} makes: run it")
    else:
        FILE.write_text(text)


if __name__ == "__main__":
    main()
