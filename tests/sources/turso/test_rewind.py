"""A sink that was emptied is given a file's log again, from its capture table or its archive."""

import json
import time

import pytest

from airflow_provider_deltaforge.control import rewind
from airflow_provider_deltaforge.control.rewind import RewindSelection, shown_time
from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.sinks.memory import memory_log
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from tests.engine.driving import DrivenRun
from tests.oracle.readers import seen_in
from tests.oracle.verdict import judge
from tests.sources.turso.shop_run import Shop
from tests.sources.turso.test_sink_behind import name_of
from tests.waiting import wait_for

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: turso
    config:
      {{id: {name}, url: {path}, tables: [customers, orders], cdc_mode: {mode},
       auto_create_triggers: true, poll_interval_ms: 20, batch_size: 40}}
  batch: {{max_events: 30, max_ms: 10}}
  {archive}
  sinks:
    - {{type: memory, config: {{id: out, log: {name}}}}}
    - {{type: memory, config: {{id: side, log: {name}-side}}}}
"""


class Emptied:
    """A pipeline over a shop, whose sink ``side`` is emptied after sixty transactions."""

    def __init__(self, mode, directory, archive=""):
        name = f"rewound-{directory.name}".replace("_", "-")
        path = directory / "shop.db"
        self.shop = Shop(path, mode)
        self.run = DrivenRun(
            name, DOCUMENT.format(name=name, path=path, mode=mode, archive=archive)
        )
        self.source = load(self.run.control.document(), {}).spec.source
        self.out, self.side = memory_log(name), memory_log(f"{name}-side")
        self.run.start()
        self.shop.trade(20)
        self.wait()
        time.sleep(1.1)  # Turso's own capture knows whole seconds.
        self.since, self.before = int(time.time() * 1000), len(self.shop.history)
        self.shop.trade(40)
        self.wait()
        self.side.clear()

    def wait(self):
        head = self.source.head()
        there = lambda sink: self.source.covers(self.run.checkpoint_of(sink), head)  # noqa: E731
        wait_for("the sinks", lambda: self.run.ended() or (there("out") and there("side")))

    def plan(self, to):
        return rewind.plan(self.run.store, self.run.name, RewindSelection(to, "side"))

    def rewind(self, planned):
        """Deliver the log again while more is written; return what is wrong in the end."""
        store, name = self.run.store, self.run.name
        rewind.request(store, name, planned, "a test")
        self.shop.trade(30)
        rewinds = Rewinds(store, name)
        wait_for("the rewind", lambda: "side" in rewinds.all() and not rewinds.running())
        assert rewinds.all()["side"].state == "done"
        self.shop.trade(10)
        self.wait()
        wanted = self.shop.history[self.before :]
        ids = [json.loads(message.value)["event_id"] for message in self.out.messages()]
        assert len(ids) == len(set(ids)) == len(self.shop.history)
        seen = seen_in([message.value for message in self.side.messages()], name_of)
        again = [change.name for change in seen].index(wanted[0].name)  # Newer ones came first.
        return judge(wanted, seen[again:])

    def stop(self):
        outcome = self.run.stop()
        self.shop.close()
        return outcome.why


def test_from_its_capture_table_until_that_is_pruned(tmp_path):
    emptied = Emptied("native", tmp_path)
    assert emptied.rewind(emptied.plan(shown_time(emptied.since))) == []
    emptied.shop.prune()
    with pytest.raises(PositionLostError, match="begins at change"):
        emptied.plan(shown_time(emptied.since))
    assert emptied.stop() == "stopped"


@pytest.mark.long
def test_what_triggers_have_no_more_comes_from_the_archive(tmp_path):
    archive = f"archive: {{directory: {tmp_path / 'archive'}, flush_secs: 1}}"
    emptied = Emptied("triggers", tmp_path, archive)

    def why():
        emptied.shop.trade(1)  # They are cleaned as more is delivered.
        try:
            emptied.source.place_at_time(emptied.since)
        except PositionLostError as error:
            return str(error)
        return ""

    wait_for("the cleaning", lambda: "is deleted once every sink" in why())
    planned = emptied.plan(shown_time(emptied.since))
    assert planned.is_archived
    assert emptied.rewind(planned) == []
    assert emptied.stop() == "stopped"
