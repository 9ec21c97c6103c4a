"""The algebra of GTID sets, against the server's own functions and against plain sets."""

import random

import pytest

from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet, GtidState
from tests.servers import sql
from tests.servers.process import Server

UUIDS = [f"{letter * 8}-71ca-11e1-9e33-c80aa9429562" for letter in "3ab"]
NAMES = [*UUIDS, f"{UUIDS[0]}:bulk", f"{UUIDS[0]}:app_1", f"{UUIDS[2]}:z"]
PAIRS = 400


def _random_set(rng: random.Random) -> GtidSet:
    """Return a set with gaps, several servers and tags; sometimes an empty one."""
    members = GtidSet()
    for name in rng.sample(NAMES, rng.randrange(len(NAMES))):
        for _ in range(rng.randrange(1, 6)):
            low = rng.randrange(1, 40)
            members = members.adding(name, low, low + rng.choice((0, 0, 1, 3, 12)))
    return members


def _plain(members: GtidSet) -> set[tuple[str, int]]:
    return {
        (name, number)
        for name, spans in members.members.items()
        for low, high in spans
        for number in range(low, high + 1)
    }


def _pairs(seed: int) -> list[tuple[GtidSet, GtidSet]]:
    rng = random.Random(seed)
    pairs = [(_random_set(rng), _random_set(rng)) for _ in range(PAIRS)]
    # Half of them lie within each other, so that both answers are frequent.
    return [(a & b, b) if i % 4 == 0 else (a, b | a) if i % 4 == 1 else (a, b)
            for i, (a, b) in enumerate(pairs)]  # fmt: skip


def test_sets_are_what_sets_of_numbers_are() -> None:
    for a, b in _pairs(1):
        left, right = _plain(a), _plain(b)
        assert _plain(a | b) == left | right
        assert _plain(a - b) == left - right
        assert _plain(a & b) == left & right
        assert (a <= b) == (left <= right)
        assert len(a) == len(left)
        assert bool(a) == bool(left)
        assert GtidSet.parse(str(a)) == a


def test_the_server_answers_the_same(mysql_server: Server) -> None:
    pairs = _pairs(2)
    rows: list[tuple[object, ...]] = []
    for at in range(0, PAIRS, 100):
        asked = " UNION ALL ".join(
            f"SELECT {i}, GTID_SUBSET('{a}', '{b}'), GTID_SUBTRACT('{a}', '{b}'), "
            f"GTID_SUBTRACT('{b}', '{a}'), GTID_SUBTRACT('{a}', '')"
            for i, (a, b) in enumerate(pairs[at : at + 100], at)
        )
        rows += sql.execute(mysql_server, asked)
    assert len(rows) == PAIRS
    contained = 0
    for index, subset, a_less_b, b_less_a, printed in rows:
        a, b = pairs[int(str(index))]
        assert bool(subset) == (a <= b), (a, b)
        assert GtidSet.parse(str(a_less_b)) == a - b
        assert GtidSet.parse(str(b_less_a)) == b - a
        assert str(printed).replace("\n", "") == str(a)
        contained += bool(subset)
    assert PAIRS // 4 < contained < PAIRS


@pytest.mark.parametrize(
    ("state", "position", "missing"),
    [
        ("0-1-100", "0-1-100", ""),
        ("0-1-100", "0-1-99", ""),
        ("0-1-100", "0-1-101", "0-1-101"),
        # The old primary wrote 105 last; this one had only 103 when it took over as server 2.
        ("0-1-103,0-2-110", "0-1-105", "0-1-105"),
        ("0-1-103,0-2-110", "0-2-110", ""),
        ("0-1-103,0-2-110", "0-1-103", ""),
        # Domains of several sources count on their own.
        ("0-1-103,7-3-5", "0-1-103,7-3-5", ""),
        ("0-1-103,7-3-5", "0-1-103,7-3-6", "7-3-6"),
        ("0-1-103", "0-1-103,7-3-6", "7-3-6"),
        ("", "0-1-1", "0-1-1"),
        ("0-1-103", "", ""),
    ],
)
def test_what_a_mariadb_server_never_wrote(state: str, position: str, missing: str) -> None:
    assert GtidState.parse(state).without(GtidPos.parse(position)) == GtidPos.parse(missing)
