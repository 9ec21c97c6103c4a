"""Two pipelines of one name, with a state store and a database each, write into one sink.

Their databases are of one server, so the position of one is a place in the log of the other.
"""

import os
import time

import orjson
import psycopg
import pytest

from airflow_provider_deltaforge.control import pipelines, sinks
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from tests.engine.exact_run import PLACES, ExactRun, new_place
from tests.engine.forked import Forked, prepare
from tests.engine.scripted_run import NAME
from tests.waiting import PATIENCE_S, wait_for

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: postgres
    config:
      id: {source}
      dsn: ${{SHOP_DSN}}
      tables: [public.orders]
      slot: {database}
      publication: {database}
      snapshot: {{mode: {snapshot}}}
  batch: {{max_events: 7, max_ms: 20}}
  sinks:
    - {sink}
"""


class Shop:
    """A database, with the pipeline that follows it."""

    def __init__(self, directory, server, place, *, label, source="shop", snapshot="never"):
        directory.mkdir(exist_ok=True)
        self._directory, self._place, self._label, self._count = directory, place, label, 0
        self._settings = {"source": source, "snapshot": snapshot}
        self.name = place.name
        self._drivers = []
        self._database = f"other_{label}_{time.time_ns()}"
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self._database} OWNER df")
        self._writer = psycopg.connect(server.dsn(self._database), autocommit=True)
        self._writer.execute("CREATE TABLE orders (id serial PRIMARY KEY, item text)")
        self._writer.execute("ALTER TABLE orders OWNER TO df")
        self._dsn = f"postgres://df:df-secret@{server.host}:{server.port}/{self._database}"
        self.take_store("state.db")

    def take_store(self, file):
        """Go on with a state store that knows nothing, or that is there."""
        dsn = f"sqlite:///{self._directory / file}"
        location = StoreLocation.from_dsn(dsn)
        self.store = location.create()
        self.control = Control(self.store, self.name)
        self.apply(self._place.sink)
        self._environment = {**os.environ, "DELTAFORGE_STORE": dsn, "SHOP_DSN": self._dsn}
        self.want("running")

    def apply(self, sink):
        told = {"name": self.name, "database": self._database, "sink": sink, **self._settings}
        pipelines.apply(self.store, DOCUMENT.format(**told))

    def want(self, desired):
        self.control.update(
            lambda old: old.model_copy(update={"desired": desired, "generation": 1})
        )

    @property
    def store_name(self):
        return f"{self.store.identity:x}"

    @property
    def source(self):
        return self._settings["source"]

    def begin(self):
        """Let the stream begin, without a word of that in the sink, and stop."""
        self.apply(self._place.sink.replace("exactly_once: true", "exactly_once: false"))
        driver = self.start()
        wait_for("the stream", self._is_running)
        self.stop(driver)
        self.apply(self._place.sink)

    def _is_running(self):
        progress = self.control.progress()
        return progress is not None and progress.status == "running"

    def order(self, count):
        """Write orders, a transaction each."""
        for _ in range(count):
            self._count += 1
            item = f"{self._label}{self._count}"
            self._writer.execute("INSERT INTO orders (item) VALUES (%s)", (item,))

    @property
    def items(self):
        return [f"{self._label}{number + 1}" for number in range(self._count)]

    def seen(self, op="c"):
        """Return the items of this shop that a consumer sees, in order."""
        events = map(orjson.loads, self._place.read())
        items = [event["after"]["item"] for event in events if event["op"] == op]
        return [item for item in items if item.startswith(self._label)]

    def start(self):
        self.want("running")
        driver = Forked(self.name, self._environment, self._directory / "driver.log")
        self._drivers.append(driver)
        return driver

    def deliver(self):
        """Run until every order is delivered, and stop."""
        driver = self.start()
        self.wait_delivered()
        self.stop(driver)

    def wait_delivered(self):
        wait_for(f"{self._count} orders", lambda: self.items[-1] in self.seen())

    def stop(self, driver):
        pipelines.ask_to_stop(self.store, self.name)
        assert driver.wait(PATIENCE_S) == 0

    def refused(self):
        """Run until the pipeline ends by itself, or delivers; return why it ended."""
        driver = self.start()
        seen = len(self.seen())
        wait_for("an end", lambda: driver.poll() is not None or len(self.seen()) > seen)
        if driver.poll() is None:
            self.stop(driver)
            return "it has delivered something"
        progress = self.control.progress()
        assert (progress.status, progress.error_class) == ("failed", "fatal")
        return progress.reason

    def adopt(self):
        sinks.adopt(self.store, self.name, "out", "a person")

    def reset(self):
        pipelines.ask_to_stop(self.store, self.name)
        pipelines.reset_checkpoint(self.store, self.name, confirm=self.name)

    def close(self):
        for driver in self._drivers:
            driver.kill()
            driver.wait(PATIENCE_S)
        self.store.close()
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        self._writer.execute(f"{drop} WHERE slot_name = %s", (self._database,))
        self._writer.close()


@pytest.fixture(params=sorted(PLACES))
def place(request):
    return new_place(request.param, request.getfixturevalue(f"{request.param}_server").dsn())


@pytest.fixture
def shop(postgres_server, place, tmp_path):
    prepare()
    made = []

    def make(label, **settings):
        made.append(Shop(tmp_path / label, postgres_server, place, label=label, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_pipeline_does_not_go_on_at_the_position_of_another_of_its_name(shop):
    ours, others = shop("a"), shop("b")
    ours.begin()
    others.begin()
    ours.order(20)
    ours.deliver()
    ours.order(20)
    others.order(20)

    reason = others.refused()

    ours.order(20)
    ours.deliver()
    assert ours.seen() == ours.items
    assert others.seen() == []
    assert ours.store_name in reason
    assert others.store_name in reason
    assert "another name" in reason
    assert f"`deltaforge sinks adopt {ours.name} out`" in reason


def test_two_that_run_at_once_make_no_gap(shop):
    ours, others = shop("a"), shop("b")
    for each in (ours, others):
        each.begin()
        each.order(30)
    drivers = {each: each.start() for each in (ours, others)}
    wait_for("one to end", lambda: any(one.poll() is not None for one in drivers.values()))

    [(ended, _)] = [(each, one) for each, one in drivers.items() if one.poll() is not None]
    [(left, driver)] = [(each, one) for each, one in drivers.items() if each is not ended]
    reason = ended.control.progress().reason
    assert ended.store_name in reason
    assert left.store_name in reason
    left.order(30)
    left.wait_delivered()
    left.stop(driver)
    assert left.seen() == left.items
    assert ended.seen() == ended.items[: len(ended.seen())]


def test_a_new_store_goes_on_where_the_sink_stands_once_somebody_says_so(place, tmp_path):
    prepare()
    (tmp_path / "new").mkdir()
    lost = ExactRun(tmp_path, place=place, transactions=200, rate=0)
    lost.begin_at(0)
    driver = lost.start()
    lost.wait_delivered(driver)
    assert lost.stop(driver) == 0

    run = ExactRun(tmp_path / "new", place=place, transactions=400, rate=0)
    for _ in range(2):
        assert run.start().wait(PATIENCE_S) != 0
        progress = run.control.progress()
        assert (progress.status, progress.error_class) == ("failed", "fatal")
        assert f"{lost.store.identity:x}" in progress.reason
    sinks.adopt(run.store, NAME, "out", "a person")
    for _ in range(2):
        driver = run.start()
        run.wait_delivered(driver)
        assert run.stop(driver) == 0
        run.want("running")

    assert run.judge({"tx": 0}) == []


def test_a_new_store_refuses_before_it_copies_a_row_and_begins_anew_once_it_is_reset(shop):
    ours = shop("a", snapshot="initial")
    ours.begin()
    ours.order(20)
    ours.deliver()
    ours.take_store("new.db")

    ours.refused()
    assert ours.seen("r") == []
    ours.reset()
    ours.order(10)
    driver = ours.start()
    wait_for("the copy", lambda: len(ours.seen("r")) == len(ours.items))
    ours.order(10)
    ours.wait_delivered()
    ours.stop(driver)

    assert set(ours.seen("r")) | set(ours.seen("c")) == set(ours.items)


def test_a_pipeline_whose_sink_another_took_goes_on_at_its_own_checkpoint(shop):
    ours, others = shop("a"), shop("b")
    ours.begin()
    others.begin()
    ours.order(10)
    ours.deliver()
    ours.order(20)
    others.order(20)
    others.refused()
    others.adopt()
    others.deliver()
    ours.order(20)

    assert others.store_name in ours.refused()
    ours.adopt()
    ours.deliver()
    ours.order(5)
    ours.deliver()

    assert ours.seen() == ours.items
