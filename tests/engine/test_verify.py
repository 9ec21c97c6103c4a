"""Verification finds what differs, and nothing else, beside a stream that goes on."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_deltaforge.control.verification import VerificationRun, repair
from airflow_provider_deltaforge.engine.verify.options import VerifyOptions, VerifyResult
from airflow_provider_deltaforge.storage.records.verifications import Verification
from tests.engine.verify_run import VerifyRun
from tests.servers.process import Server

SINKS = ["kafka", "redis", "file"]


def found_in(result: VerifyResult) -> dict[str, dict[str, Any]]:
    """Return by sink and table, without its qualifier, the keys of each kind."""
    return {
        sink: {
            table.rpartition(".")[2]: {kind: set(keys) for kind, keys in kinds.items()}
            for table, kinds in tables.items()
        }
        for sink, tables in result.keys.items()
    }


@pytest.fixture(
    scope="module", params=["mysql", pytest.param("mariadb", marks=pytest.mark.long), "postgres"]
)
def run(
    request: pytest.FixtureRequest,
    kafka_server: Server,
    redis_server: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[VerifyRun]:
    """A pipeline that runs while all tests of one server last."""
    server = request.getfixturevalue(f"{request.param}_server")
    verified = VerifyRun(server, kafka_server, redis_server, tmp_path_factory.mktemp("verify"))
    with verified.running():
        yield verified


def test_equal_data_under_load(run: VerifyRun) -> None:
    with run.writing():
        result = run.verify("*.wide", "*.pair", rounds=3)
    assert result.keys == {}
    assert [sink.sink for sink in result.sinks] == SINKS
    for sink in result.sinks:
        assert sink.reason is None, sink
        assert {table.differences for table in sink.tables} == {0}
        assert all(table.rows > 100 for table in sink.tables)


def test_tampering_is_found_exactly(run: VerifyRun) -> None:
    """Rows that a foreign program wrote straight into the sinks, while writers go on."""
    run.execute(
        *(f"UPDATE wide SET s = 'still' WHERE id = {n}" for n in range(301, 304)),
        "DELETE FROM wide WHERE id IN (351, 352)",
    )
    with run.writing():
        run.verify("*.wide", rounds=0)  # Everything above has arrived.
        run.send("wide", b'{"id":999001}', run.event("wide", "c", {"id": 999001, "s": "extra"}))
        run.send("wide", b'{"id":301}', None)
        run.send("wide", b'{"id":302}', run.event("wide", "u", {"id": 302, "s": "other"}))
        run.send("wide", b'{"id":303}', b"no event at all")
        run.send("pair", b'{"a":77,"b":"it\'s"}', run.event("pair", "c", {"a": 77, "b": "it's"}))
        for op, row in (("c", {"id": 999002}), ("d", {"id": 303}), ("u", {"id": 302})):
            event = run.event("wide", op, row)
            run.append(event)
            key = json.dumps({"id": row["id"]}, separators=(",", ":"))
            run.redis.xadd(f"{run.name}.wide", {"event": event, "df-key": key})
        # The writers may change these rows; then nothing differs any more.
        result = run.verify("*.wide", "*.pair", rounds=3)
    tampered = {
        "missing": {'{"id":303}'},
        "extra": {'{"id":999002}'},
        "different": {'{"id":302}'},
    }
    assert found_in(result) == {
        "kafka": {
            "wide": {
                "missing": {'{"id":301}'},
                "extra": {'{"id":999001}'},
                "different": {'{"id":302}', '{"id":303}'},
            },
            "pair": {"extra": {'{"a":77,"b":"it\'s"}'}},
        },
        "redis": {"wide": tampered},
        "file": {"wide": tampered},
    }
    assert result.verdict == "different"


def test_a_repair_sends_again_what_differs_and_nothing_else(run: VerifyRun) -> None:
    run.execute(*(f"UPDATE wide SET s = 'still' WHERE id = {n}" for n in (311, 312)))
    run.verify("*.wide", rounds=0)  # Everything above has arrived.
    options = VerifyOptions(tables=("*.wide", "*.pair"), rounds=3)

    def verified() -> Verification:
        verification = VerificationRun(run.store, run.name, options, "a test")
        verification.begin()
        return verification.run()

    with run.writing():
        run.send("wide", b'{"id":999011}', run.event("wide", "c", {"id": 999011, "s": "extra"}))
        run.send("wide", b'{"id":311}', None)
        run.send("pair", b'{"a":78,"b":"it\'s"}', run.event("pair", "c", {"a": 78, "b": "it's"}))
        event = run.event("wide", "u", {"id": 312, "s": "other"})
        run.redis.xadd(f"{run.name}.wide", {"event": event, "df-key": '{"id":312}'})
        found = verified()
        assert found.differences >= 4
        asked = repair(run.store, run.name, found, "a test", lambda: False)
        again = verified()

    assert asked.rows <= found.differences
    assert again.differences == 0  # Rows in constant motion may stay inconclusive.


def test_tables_without_a_key_are_refused(run: VerifyRun) -> None:
    result = run.verify("*.bare", sinks=("file",))
    [table] = result.sinks[0].tables
    assert result.verdict == "incomplete"
    assert "no key" in (table.reason or "")
