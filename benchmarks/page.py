"""``./dev.sh bench page``: writes ``docs/performance.md`` and its pictures from ``results/``.

The pictures need matplotlib, which nothing else does: ``pip install matplotlib``.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
_ENGINES = {"-local": "one process", "": "Spark `local[2]`"}
_SOURCES = {"mysql": "MySQL", "postgres": "PostgreSQL"}
_COLOURS = {"mysql": "#1f77b4", "postgres": "#d9822b"}
_PICTURE = {"svg.fonttype": "none", "svg.hashsalt": "deltaforge"}
"""Texts stay texts, and the same figures make the same file."""
_CPU, _MIB = "cpu_s_per_million", "pss_mib_peak"
_PROFILED = (2_000, 20_000)
_THREADS = {
    "reader": "receives the log and cuts it at transactions",
    "decoder": "decodes, processes and renders",
    "delivery": "hands batches to the sinks, stores checkpoints",
    "sink-kafka": "hands messages to the client, waits for the answers",
    "librdkafka": "the client's own threads",
}
_SOAK = DOCS / "proofs" / "soak.json"
_SYSTEMS = {
    "ours": "DeltaForge for Airflow and Spark, one process",
    "ours-spark": "the same, Spark `local[2]`",
    "deltaforge-rust": "DeltaForge (Rust)",
    "debezium": "Debezium",
}


def main(_results: Path, _about_this_run: dict[str, Any]) -> None:
    """Write the page and the pictures."""
    text = _TEMPLATE.format(
        peers=_peers(),
        about=_about(),
        rates=_rates_table(),
        drains=_drain_table(),
        starts=_starts_table(),
        before=_before_table(),
        targets=_targets_table(),
        threads=_threads_table(),
        pace=_pace(),
        profiled=f"`{_threads('mysql')['commit']}`, {_threads('mysql')['date']}",
        bound=_bound(),
        soak=_soak(),
    )
    (DOCS / "performance.md").write_text(text)
    _plot("p99_ms", "99th percentile, ms", "performance-latency")
    _plot("cpu", "CPU seconds per million events", "performance-cpu")


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _about() -> str:
    results = [_result(f"rates-{of}-inserts{engine}") for of in _SOURCES for engine in _ENGINES]
    machine = results[0]["machine"]
    commits = ", ".join(sorted({f"`{each['commit']}`" for each in results}))
    rounds = [run for each in results for run in each.get("rounds", [each])]
    load = max(run["machine"]["load_before"] for run in rounds)
    return (
        f"{machine['cores']} cores for everything:\ndatabase, broker and us. Python "
        f"{machine['python'].strip()}, commit {commits}, {results[0]['date']}; load before a run\n"
        f"at most {load:.1f}; rounds: {len(rounds) // len(results)}, of which medians are shown."
    )


def _ours(row: dict[str, Any], figure: str) -> float:
    """Return the sum of a figure of our own processes, database and broker left out."""
    processes = row["processes"].items()
    return float(sum(used[figure] for name, used in processes if name.startswith("driver")))


def _table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [heads, ["---" if at < 2 else "---:" for at in range(len(heads))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _rates_table() -> str:
    rows = [
        [
            name,
            where,
            f"{row['events_per_s']:,}",
            f"{row['p50_ms']:.0f}",
            f"{row['p99_ms']:.0f}",
            f"{row['max_ms']:.0f}",
            f"{row['batches_per_s']:.0f}",
            f"{_ours(row, _CPU):.0f}",
            f"{_ours(row, _MIB):,.0f}",
        ]
        for source, name in _SOURCES.items()
        for engine, where in _ENGINES.items()
        for row in _result(f"rates-{source}-inserts{engine}")["rates"]
    ]
    heads = ("source", "engine", "events/s", "p50 ms", "p99 ms", "max ms", "batches/s")
    return _table((*heads, "CPU s per million", "MiB"), rows)


def _drain_table() -> str:
    rows = []
    for source, name in _SOURCES.items():
        for engine, where in _ENGINES.items():
            whole = _result(f"drain-{source}-inserts{engine}")["whole"]
            cpu, mib = _ours(whole, _CPU), _ours(whole, _MIB)
            rows.append([name, where, f"{whole['rows_per_s']:,}", f"{cpu:.1f}", f"{mib:,.0f}"])
    return _table(("source", "engine", "rows/s", "CPU s per million", "MiB"), rows)


def _starts_table() -> str:
    """Return starts of this version, and of one version on two days: the machine's own speed."""
    rows = []
    for engine, where in _ENGINES.items():
        now = _result(f"starts-mysql{engine}")
        earlier = (run for run in _result("before")["starts"] if run["engine"] == now["engine"])
        for run in (*earlier, {**now, **now["whole"]}):
            figures = f"{run['after_kill_s']:.1f}", f"{run['cpu_s']:.1f}"
            rows.append([where, f"`{run['commit']}`", run["date"], *figures])
    return _table(("engine", "commit", "measured on", "seconds", "CPU s"), rows)


def _before_table() -> str:
    """Return what earlier versions did at the same loads, as measured beside this one."""
    runs = list(_result("before")["rates"])
    for source in _SOURCES:
        now = _result(f"rates-{source}-inserts-local")
        runs += ({**now, "source": source, **row} for row in now["rates"])
    figures = ("events_per_s", "p50_ms", "p99_ms", "batches_per_s")
    rows = [
        [
            f"{name}, {asked:,}/s",
            f"`{run['commit']}`",
            *(f"{run[figure]:,.0f}" for figure in figures),
            f"{_ours(run, _CPU):.0f}",
            f"{run['processes']['driver: application']['rss_mib_peak']:.0f}",
        ]
        for source, name in _SOURCES.items()
        for asked in _PROFILED
        for run in runs
        if (run["source"], run["asked_per_s"]) == (source, asked)
    ]
    heads = ("source", "commit", "events/s", "p50 ms", "p99 ms", "batches/s")
    return _table((*heads, "CPU s per million", "resident MiB"), rows)


def _peers() -> str:
    """Return what ``peers`` measured, and how."""
    result = _result("peers")
    rounds = {row["rounds"] for row in result["medians"]}
    measured = {(run["date"], run["commit"]) for run in result["runs"]}
    whens = [f"{date}, `{commit}`" for date, commit in sorted(measured)]
    words = (
        f"`./dev.sh bench peers` ({'; '.join(whens)}): medians of "
        f"{min(rounds)} round{'s' if min(rounds) > 1 else ''} in rotating order"
    )
    if not result.get("spark_classes_kept"):
        words += ";\non Spark without the classes that `deltaforge precompile` keeps"
    tables = []
    for what, heads, figures in (
        (
            "backlog",
            ("rows/s", "rows/s, second half", "CPU s per million", "MiB"),
            ("rows_per_s", "rows_per_s_second_half", "cpu_s_per_million", "pss_mib_peak"),
        ),
        *(
            (
                f"steady {rate}",
                ("events/s", "p50 ms", "p99 ms", "CPU s per million", "MiB"),
                ("written_per_s", "p50_ms", "p99_ms", "cpu_s_per_million", "pss_mib_peak"),
            )
            for rate in (2_000, 20_000)
        ),
        ("start", ("seconds after kill -9", "CPU s"), ("after_kill_s", "cpu_s")),
    ):
        rows = [
            [
                _SOURCES[row["source"]],
                _SYSTEMS[row["system"]],
                *(f"{row[figure]:,}" if figure in row else "" for figure in figures),
            ]
            for source in _SOURCES
            for system in _SYSTEMS
            for row in result["medians"]
            if (row["what"], row["source"], row["system"]) == (what, source, system)
        ]
        if rows:
            tables.append(
                f"**{_PEER_TITLES[what]}**\n\n" + _table(("source", "system", *heads), rows)
            )
    about = _ABOUT_PEERS.format(debezium=result["versions"]["debezium"])
    return f"{about}\n{words}.\n\n" + "\n\n".join(tables)


_ABOUT_PEERS = """\
The same servers, rows and broker for all; each system has the settings that its documents advise
for a backlog and for a short way (`benchmarks/peer_systems.py`), ours its defaults for the steady
loads. Debezium is {debezium}, with Kafka Connect in one process and a heap of 1 to 2 GiB; ours is
`deltaforge run`, with what supervises the driver. Latency is from `NOW()` in the row's statement.
JVMs begin cold in each run; the second half of a backlog is where they are warm, and 15 s of a
steady load pass before it is measured.
"""
_PEER_TITLES = {
    "backlog": "A backlog of a million rows, in transactions of 64",
    "steady 2000": "2,000 rows a second, in transactions of 20",
    "steady 20000": "20,000 rows a second, in transactions of 20",
    "start": "A start after a kill, at 200 rows a second",
}


def _targets_table() -> str:
    """Return what we want to reach, whether it is reached or not."""
    rates = {
        source + engine: {
            row["asked_per_s"]: row for row in _result(f"rates-{source}-inserts{engine}")["rates"]
        }
        for source in _SOURCES
        for engine in _ENGINES
    }
    drain = _result("drain-mysql-inserts-local")["whole"]
    starts = {engine: _result(f"starts-mysql{engine}")["whole"] for engine in _ENGINES}
    own, on_spark = rates["mysql-local"], rates["mysql"]
    targets: list[tuple[str, str, float, float]] = []
    for rate, quantile, words, most_ms in (
        (2_000, "p50_ms", "median wait", 4),
        (2_000, "p99_ms", "99th percentile", 12),
        (20_000, "p50_ms", "median wait", 8),
        (20_000, "p99_ms", "99th percentile", 30),
    ):
        for source, name in _SOURCES.items():
            value = round(rates[f"{source}-local"][rate][quantile])
            targets.append((f"{words} at {rate:,}/s, {name}, ms", "at most", most_ms, value))
    targets += [
        ("CPU s per million at 2,000/s, MySQL", "at most", 60, round(_ours(own[2_000], _CPU))),
        ("MiB at 2,000/s, MySQL", "at most", 150, round(_ours(own[2_000], _MIB))),
        ("MiB with a backlog, MySQL", "at most", 300, round(_ours(drain, _MIB))),
        ("MiB at 2,000/s, MySQL, on Spark", "at most", 600, round(_ours(on_spark[2_000], _MIB))),
        ("seconds of a start", "at most", 3, starts["-local"]["after_kill_s"]),
        ("CPU s of a start", "at most", 1, starts["-local"]["cpu_s"]),
        ("seconds of a start on Spark", "at most", 8, starts[""]["after_kill_s"]),
        ("CPU s of a start on Spark", "at most", 6, starts[""]["cpu_s"]),
        ("rows/s of a backlog, MySQL", "at least", 600_000, drain["rows_per_s"]),
    ]
    rows = []
    for what, border, limit, value in targets:
        is_reached = value <= limit if border == "at most" else value >= limit
        rows.append([what, f"{border} {limit:,}", f"{value:,}", "yes" if is_reached else "**no**"])
    return _table(("what", "target", "measured", "reached"), rows)


def _threads_table() -> str:
    """Return which part of its CPU each thread of one process takes at a steady load."""
    measured = [
        (name, row["events_per_s"], row["cpu_s_per_million"])
        for source, name in _SOURCES.items()
        for row in _threads(source)["rates"]
        if row["asked_per_s"] in _PROFILED
    ]
    others = {name for _, _, spent in measured for name in spent} - _THREADS.keys()
    rows = [
        [name, what, *(_share(spent, of) for _, _, spent in measured)]
        for name, what, of in (
            *((name, what, {name}) for name, what in _THREADS.items()),
            ("others", "heartbeat, state, measuring", others),
        )
    ]
    heads = [f"{source}, {rate:,}/s" for source, rate, _ in measured]
    return _table(("thread", "does", *heads), rows)


def _threads(source: str) -> dict[str, Any]:
    return _result(f"threads-{source}-inserts-local")


def _pace() -> str:
    """Return what cold caches do to any work on the machine."""
    machine = _threads("mysql")["machine"]
    return (
        f"some work of Python, NumPy and Arrow that takes {machine['work_us']} µs of CPU at a "
        f"stretch\ntook {machine['work_after_sleep_us']} µs after 10 ms of sleep"
    )


def _share(spent: dict[str, float], names: Iterable[str]) -> str:
    return f"{100 * sum(spent.get(name, 0) for name in names) / sum(spent.values()):.0f} %"


def _bound() -> str:
    """Return what the machine's cores would allow while a backlog is delivered."""
    result = _result("drain-mysql-inserts-local")
    cores, whole = result["machine"]["cores"], result["whole"]
    spent = {name: used["cpu_s_per_million"] for name, used in whole["processes"].items()}
    ours = sum(cpu for name, cpu in spent.items() if name.startswith("driver"))
    most = cores / sum(spent.values()) * 1e6
    return (
        f"With a backlog, a million rows take {ours:.1f} s of CPU here, {spent['kafka']:.1f} s in "
        f"the broker and {spent['mysql']:.1f} s\nin MySQL: {cores} cores that never wait would "
        f"come to {most:,.0f} rows/s."
    )


def _soak() -> str:
    """Return what the last long soak showed, and draw it; nothing where there was none."""
    if not _SOAK.exists():
        return ""
    parts = ["## Hours in one piece\n"]
    for case in json.loads(_SOAK.read_text())["cases"]:
        name = f"performance-soak-{case['engine']}"
        _plot_soak(case["curve"], name)
        engine = "one process" if case["engine"] == "local" else "Spark"
        parts.append(
            f"`./dev.sh prove soak --hours {case['of_hours']:g}`, {engine}: {case['events']:,} "
            "events from MySQL to Kafka exactly once; the writers wanted 5,000 rows/s and came to "
            f"{case['rows_written'] / case['of_hours'] / 3600:,.0f}/s on the same cores, with "
            f"{len(case['done'])} changes of the table, restarts, kills and absences of servers; "
            f"{case['faults']} events lost, repeated or late. Memory was at most "
            f"{case['mib_peak']:.0f} MiB and grew by {case['mib_slope_per_hour']:g} MiB an hour "
            f"(`docs/proofs/soak.json`).\n\n![Memory, waits and lag](images/{name}.svg)\n"
        )
    return "\n".join(parts) + "\n"


def _plot_soak(curve: dict[str, list[float | None]], name: str) -> None:
    from matplotlib import pyplot as plt

    plt.rcParams.update(_PICTURE)
    minutes = [(each or 0.0) / 60 for each in curve["s"]]
    figure, rows = plt.subplots(3, figsize=(7, 6), sharex=True)
    for axes, label, lines in zip(
        rows,
        ("MiB", "commit to append, ms", "lag, ms"),
        (("mib",), ("p50_ms", "p99_ms"), ("lag_ms",)),
        strict=True,
    ):
        for line in lines:
            values = [float("nan") if each is None else each for each in curve[line]]
            axes.plot(minutes, values, linewidth=0.8, label=line.removesuffix("_ms"))
        axes.set(ylabel=label, yscale="linear" if label == "MiB" else "log")
        axes.grid(visible=True, alpha=0.3)
    rows[0].set_ylim(bottom=0)
    rows[1].legend(fontsize=8)
    rows[2].set(xlabel="minutes")
    figure.tight_layout()
    figure.savefig(DOCS / "images" / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def _plot(what: str, label: str, name: str) -> None:
    from matplotlib import pyplot as plt

    plt.rcParams.update(_PICTURE)
    figure, axes = plt.subplots(figsize=(7, 3.6))
    for source, title in _SOURCES.items():
        for engine, where in _ENGINES.items():
            rows = _result(f"rates-{source}-inserts{engine}")["rates"]
            axes.plot(
                [row["events_per_s"] for row in rows],
                [_ours(row, _CPU) if what == "cpu" else row[what] for row in rows],
                marker="o",
                color=_COLOURS[source],
                linestyle="-" if engine else "--",
                label=f"{title}, {where.replace('`', '')}",
            )
    axes.set(xscale="log", yscale="log", xlabel="events per second", ylabel=label)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(DOCS / "images" / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


_TEMPLATE = """# Performance

`./dev.sh bench page` writes this page from `benchmarks/results/`. {about} Rows of about 150 bytes
go to Kafka (`acks=all`, one broker) as native JSON under default settings. Yours differ: measure
with your rows and servers.

## A steady load

`./dev.sh bench rates` commits transactions of 20 rows at each rate. Latency is from the source's
commit to the broker's append. CPU and memory are of our processes together, database and broker
left out; a page that several processes share counts once. Where `events/s` is below the rates of
20, 200, 2,000, 10,000 and 20,000 that were asked for, the writer got no more through on the same
two cores.

{rates}

![Latency by rate](images/performance-latency.svg)

![CPU by rate](images/performance-cpu.svg)

## A backlog

`./dev.sh bench drain` writes a million rows first and delivers them then (`max_events: 16000`,
`max_ms: 100`, `max_inflight: 4`).

{drains}

## A start

`./dev.sh bench starts`: from `kill -9` and a new start to the next event of MySQL at the broker,
the median of three in each round, and the CPU of that start.

{starts}

The same commit on two days shows how the machine's own speed changes.

## Before and after

Earlier versions, measured once in the hours of the tables above by `./dev.sh bench latency`: one
process, defaults (`benchmarks/results/before.json`).

{before}

Batches go out as soon as a sink is idle; behind a small one, what is read next waits for that.
Checkpoints are stored together, one kernel writes a batch's JSON, and compiled kernels need no
compiler.

{soak}## What we want to reach

In one process, unless it says Spark.

{targets}

Small loads are where we cost most. Each transaction is decoded, and becomes a batch, of its own
there; what that costs is spread over many small steps of Python, and caches are cold each time:
{pace} (`benchmarks/machine.py`). Where the CPU of one
process goes, at the rates that the writers came to ({profiled};
`benchmarks/results/threads-*.json`):

{threads}

{bound}

## Beside other systems

{peers}

## Other measurements

- [Snapshots](snapshots.md) beside `COPY` and `mysqldump`; [verification](verify.md)
- [Exactly once](delivery.md) beside at least once: `benchmarks/results/exactly_once.json`
- [Processors](processors.md), [sensing](sensing.md), a sink [away for a minute](delivery.md)
"""
