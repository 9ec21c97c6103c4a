"""A newcomer's first run: a fresh environment, ``pip install``, and ``airflow dags test``.

Nothing of this checkout is on the path: the wheel is built, installed beside Airflow, Spark and the
embedded database into an environment of its own, and the DAG that the wheel brings is run on a file
that somebody writes to meanwhile. Needs a Java runtime and the package index.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.prove.unit import Task, Unit

SEEDS = 1
EXTRAS = "airflow,spark,turso"
DAG = "embedded_shop"
PIPELINE = "embedded-shop"
_ROOT = Path(__file__).parents[2]
_ROWS = 2000
_WINDOW_S = 15
_LINES_TOLD = 60

# What the newcomer's own application does: rows that were there, then changes until it is ended.
_SHOP = """
import contextlib, random, signal, sys, time
import turso
path, rows = sys.argv[1], int(sys.argv[2])
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(True))
with contextlib.closing(turso.connect(path, experimental_features="multiprocess_wal")) as shop:
    shop.execute("PRAGMA unstable_capture_data_changes_conn('full')")
    if rows:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT, cents INTEGER)")
        shop.executemany("INSERT INTO orders (status, cents) VALUES ('old', ?)",
                         [(number,) for number in range(rows)])
        shop.commit()
    while not over and not rows:
        kind, key = random.random(), random.randint(1, 2000)
        if kind < 0.5:
            shop.execute("INSERT INTO orders (status, cents) VALUES ('new', ?)", (key,))
        elif kind < 0.9:
            paid = "UPDATE orders SET status = 'paid', cents = cents + 1 WHERE id = ?"
            shop.execute(paid, (key,))
        else:
            shop.execute("DELETE FROM orders WHERE id = ?", (key,))
        shop.commit()
        time.sleep(0.02)
"""
_READ = """
import json, sys, turso
shop = turso.connect(sys.argv[1], experimental_features="multiprocess_wal")
print(json.dumps(shop.execute("SELECT id, status, cents FROM orders").fetchall()))
"""


@dataclass
class Newcomer:
    """One person with an empty folder."""

    place: Path
    steps: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.python = self.place / "venv" / "bin" / "python"
        self.shop = self.place / "shop.db"
        self.output = self.place / "out"
        self.store = self.place / "state.db"

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Note how long a step takes."""
        began = time.monotonic()
        yield
        self.steps[name] = round(time.monotonic() - began, 1)
        print(f"{name}: {self.steps[name]} s")

    def install(self) -> None:
        """Build the wheel and install it, with what the first run needs, and nothing else."""
        with self.step("build"):
            self._run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", self.place])
        [wheel] = self.place.glob("*.whl")
        with self.step("install"):
            uv = [sys.executable, "-m", "uv"]
            self._run([*uv, "venv", "-q", "--python", sys.executable, self.place / "venv"])
            wanted = f"airflow-provider-deltaforge[{EXTRAS}] @ {wheel.as_uri()}"
            self._run([*uv, "pip", "install", "-q", "--python", self.python, wanted])

    def environment(self) -> dict[str, str]:
        """Return what the README tells a newcomer to set, on top of a plain environment."""
        plain = {key: os.environ[key] for key in ("HOME", "JAVA_HOME") if key in os.environ}
        examples = self._run(
            [
                self.python,
                "-c",
                "import airflow_provider_deltaforge as p; print(p.__path__[0] + '/example_dags')",
            ]
        ).strip()
        connection = {"conn_type": "deltaforge", "extra": {"path": str(self.store)}}
        return {
            **plain,
            "PATH": f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin",
            "AIRFLOW_HOME": str(self.place / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": examples,
            "AIRFLOW_CONN_DELTAFORGE_DEFAULT": json.dumps(connection),
            "SHOP_DB": str(self.shop),
            "SHOP_OUTPUT": str(self.output),
            "DELTAFORGE_WINDOW_S": str(_WINDOW_S),
            "DELTAFORGE_MASTER": "local[2]",
        }

    def first_run(self) -> None:
        """Run the DAG while rows change, then stop the stream as the documents say."""
        env = self.environment()
        self._run([self.python, "-c", _SHOP, self.shop, str(_ROWS)])
        writer = subprocess.Popen([self.python, "-c", _SHOP, self.shop, "0"], cwd=self.place)
        try:
            with self.step("airflow db migrate"):
                self._run(["airflow", "db", "migrate"], env)
            with self.step("airflow dags test"):
                text = self._run(["airflow", "dags", "test", DAG], env)
        finally:
            writer.terminate()
            writer.wait(60)
        if "state=failed" in text or "Dag run in failure state" in text:
            raise RuntimeError("\n".join(text.splitlines()[-_LINES_TOLD:]))
        try:
            self._wait_until_equal()
        finally:
            with self.step("deltaforge stop"):
                self._run(
                    ["deltaforge", "stop", PIPELINE, "--store", f"sqlite:///{self.store}"], env
                )

    def _wait_until_equal(self) -> None:
        """Return when the file's last state of every row is the table's.

        Raises:
            RuntimeError: it never was.
        """
        told = json.loads(self._run([self.python, "-c", _READ, self.shop]))
        table = {row[0]: tuple(row[1:]) for row in told}
        deadline = time.monotonic() + 300
        while (state := self.delivered()) != table:
            if time.monotonic() > deadline:
                differing = {
                    key for key in state.keys() | table.keys() if state.get(key) != table.get(key)
                }
                raise RuntimeError(f"{len(differing)} of {len(table)} rows differ in the output")
            time.sleep(0.5)

    def delivered(self) -> dict[int, tuple[Any, ...]]:
        """Return the last state of every row in the output."""
        state: dict[int, tuple[Any, ...]] = {}
        for event in self.events():
            if event["op"] == "d":
                state.pop(event["before"]["id"], None)
            else:
                row = event["after"]
                state[row["id"]] = (row["status"], row["cents"])
        return state

    def events(self) -> list[dict[str, Any]]:
        """Return everything in the output; a line that is not finished was not written."""
        path = self.output / "orders.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def installed(self) -> list[str]:
        """Return the packages of the environment that this project names."""
        listed = self._run(
            [sys.executable, "-m", "uv", "pip", "list", "-q", "--python", self.python]
        )
        names = ("apache-airflow ", "pyspark", "pyturso", "airflow-provider-deltaforge")
        return [" ".join(line.split()) for line in listed.splitlines() if line.startswith(names)]

    def left_behind(self) -> list[int]:
        """Return the processes that still run in the newcomer's folder."""
        mine = str(self.place).encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mine in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return [pid for pid in found if pid != os.getpid()]

    def _run(self, words: list[Any], env: dict[str, str] | None = None) -> str:
        path = (env or os.environ)["PATH"]
        program = shutil.which(str(words[0]), path=path) or str(words[0])
        done = subprocess.run(
            [program, *map(str, words[1:])],
            env=env,
            cwd=_ROOT if "hatchling" in words else self.place,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-_LINES_TOLD:])
            raise RuntimeError(
                f"{' '.join(map(str, words[:4]))} ended with {done.returncode}:\n{tail}"
            )
        return done.stdout + done.stderr if env else done.stdout


def units(seeds: int) -> list[Unit]:
    """Return the one unit: an installation, and a first run."""
    return [
        Unit(
            area="newcomer",
            name=f"first_run/{seed}",
            run=f"{__name__}:run",
            cases=[{"name": "pip install, airflow dags test", "seed": seed}],
            kind="newcomer",
            seconds=420,
            limit_s=3000,
        )
        for seed in range(seeds)
    ]


def run(task: Task) -> None:
    """Be a newcomer once."""
    began = time.monotonic()
    newcomer = Newcomer(task.home)
    case: dict[str, Any] = {**task.cases[0], "result": "ok", "wrong": []}
    try:
        newcomer.install()
        newcomer.first_run()
        if left := newcomer.left_behind():
            case["wrong"] = [f"{len(left)} processes are left behind"]
    except RuntimeError as error:
        case["wrong"] = [str(error)]
    case["result"] = "wrong" if case["wrong"] else "ok"
    case["seconds"] = round(time.monotonic() - began, 1)
    case["steps"] = newcomer.steps
    if newcomer.python.exists():
        case["installed"] = newcomer.installed()
    case["events"] = {op: sum(event["op"] == op for event in newcomer.events()) for op in "rcud"}
    task.add(case)
