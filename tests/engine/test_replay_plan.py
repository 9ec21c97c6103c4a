"""What a replay does with each entry is decided without comparing it with all others."""

import uuid

from airflow_provider_deltaforge.engine.dead_letters.row_keys import RowKey
from airflow_provider_deltaforge.engine.replay.plan import ReplayPlan
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterReason,
    EventRemainder,
)
from tests.engine.in_process import InProcess


def test_a_plan_finds_what_comes_first_without_asking_every_entry(monkeypatch):
    asked = []
    real = RowKey.meets
    monkeypatch.setattr(RowKey, "meets", lambda one, other: asked.append(1) or real(one, other))
    spec = InProcess(journal="enabled: true").context().pipeline.spec
    plan = ReplayPlan(spec, DeadLetterFilter(kind="meant"), "skip", {})
    verdicts = []
    for seq in range(1, 201):
        kind = "meant" if seq % 2 == 0 else "other"
        row = seq - 1 if seq == 200 else seq  # The last one stands behind one that stays.
        letter = DeadLetter(
            seq=seq,
            timestamp=0,
            pipeline="p",
            event_id=str(uuid.UUID(int=seq)),
            event={"op": "u", "source": {"db": "d", "table": "t"}},
            rest=EventRemainder(key=f'{{"id":{row}}}'),
            meta=DeadLetterReason(sink_id="out", error_kind=kind, error_message="why"),
        )
        verdicts.append(plan.judge(letter))
    meant = [one for one in verdicts if one is not None]
    assert [one.action for one in meant] == ["send"] * 99 + ["behind"]
    assert meant[-1].why == "entry 199 of the same row comes first"
    assert len(asked) < 200
