"""Compares what happened with what arrived, and names every difference.

Knows nothing of the code under test: a history is a list of changes in commit order, a delivery a
list of what a consumer saw. A change is named by where it stands in the source's own log.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

SHOWN = 5

UNCHANGED = {"_unchanged": True}
"""A column that the log leaves out because it is as it was."""


@dataclass(frozen=True)
class AllRows:
    """The key of a truncation: every row whose key is ``(table, …)``."""

    table: str


@dataclass(frozen=True)
class Change:
    """One row change: ``name`` is where it stands in the log, ``state`` None once deleted.

    ``moved_from`` is the key that the row had before, where the change gave it another.
    """

    name: Hashable
    key: Hashable
    state: Any
    moved_from: Hashable | None = None


@dataclass(frozen=True)
class Seen:
    """One event as a consumer saw it, in the order of its key's partition.

    ``name`` is None for a snapshot row, which stands nowhere in the log.
    """

    name: Hashable | None
    key: Hashable
    state: Any
    event_id: str
    moved_from: Hashable | None = None


def judge(
    history: Sequence[Change],
    seen: Sequence[Seen],
    table: Mapping[Hashable, Any] | None = None,
    *,
    exactly_once: bool = False,
    each_row_once: bool = False,
) -> list[str]:
    """Return what is wrong, in words; nothing when every promise held.

    Args:
        history: every captured change that had to arrive, in commit order.
        seen: what arrived; per key in the order a consumer gets it.
        table: the source table now, by key; None where it cannot be read.
        exactly_once: no event of the log may arrive twice; rows of copies may.
        each_row_once: no change may arrive that the row's first copy shows.
    """
    streamed = [event for event in seen if event.name is not None]
    wrong = [
        *_missing(history, seen),
        *_alien(history, streamed),
        *_out_of_order(history, streamed),
        *_changed_on_replay(history, seen),
        *_wrong_end(history, seen, table),
    ]
    if exactly_once:
        wrong += _repeated(streamed)
    if each_row_once:
        wrong += _shown_again(history, seen)
    return wrong


Event = TypeVar("Event", Change, Seen)


def without_empty(events: Sequence[Event], column: str) -> list[Event]:
    """Return events without a column that came meanwhile, where it holds nothing.

    A row's event of before lacks it, a copy of the same row has it.
    """
    return [replace(event, state=bare(event.state, column)) for event in events]


def bare(state: Any, column: str) -> Any:
    """Return a row without a column that holds nothing."""
    if not isinstance(state, dict) or state.get(column) is not None:
        return state
    return {name: value for name, value in state.items() if name != column}


def _missing(history: Sequence[Change], seen: Sequence[Seen]) -> list[str]:
    """Name the changes that neither arrived nor show in a copy.

    What a copy of a row shows needs not arrive: the first changes of its key, up to the state that
    the copy has; of a row that is in no copy, up to one where it was gone.
    """
    arrived, copies = _arrived(seen), _copies(seen)
    if not copies:
        return _told("never arrived", [c.name for c in history if c.name not in arrived])
    lost = [
        change.name
        for key, changes in _by_key(history).items()
        for change in _not_shown(key, changes, arrived, copies.get(key, []))
    ]
    lost += [
        c.name for c in history if isinstance(c.key, AllRows) and not _covered(c, history, seen)
    ]
    return _told("never arrived", list(dict.fromkeys(lost)))


def _covered(truncation: Change, history: Sequence[Change], seen: Sequence[Seen]) -> bool:
    """Return whether a truncation arrived, or nothing of its table from before it did."""
    names = {event.name for event in seen if _table_of(event.key) == truncation.key.table}
    earlier = history[: history.index(truncation)]
    return truncation.name in names or not any(change.name in names for change in earlier)


def _not_shown(
    key: Hashable,
    changes: Sequence[Change],
    arrived: Mapping[Hashable, set[Any]],
    copies: list[Any],
) -> list[Change]:
    """Return the changes of a key that never arrived although no copy shows them."""
    missing = [change for change in changes if not _reached(change, key, arrived)]
    if not missing:
        return []
    # A view may have shown more than what was left out.
    states = [_state_of(change, key) for change in changes[len(missing) - 1 :]]
    seen = copies or [None]
    is_shown = any(_agrees(state, copy) for state in states for copy in seen)
    is_shown = is_shown or states[0] is None
    return [] if is_shown and changes[: len(missing)] == missing else missing


def _shown_again(history: Sequence[Change], seen: Sequence[Seen]) -> list[str]:
    """Name the changes that arrived although the copy before them shows them already."""
    arrived, copies = _arrived(seen), _copies(seen)
    again = []
    for key, changes in _by_key(history).items():
        states = [_state_of(change, key) for change in changes]
        for copy in copies.get(key, [])[:1]:
            places = [at for at, state in enumerate(states) if state is not None and state == copy]
            if len(places) == 1:
                front = changes[: places[0] + 1]
                again += [change.name for change in front if _reached(change, key, arrived)]
    return _told("arrived although a copy had shown them", list(dict.fromkeys(again)))


def _by_key(history: Sequence[Change]) -> dict[Hashable, list[Change]]:
    """Return the changes of each row's key in order: a truncation is one of all its rows."""
    found: dict[Hashable, list[Change]] = {}
    for change in history:
        for key in (change.key, change.moved_from):
            if key is not None and not isinstance(key, AllRows):
                found.setdefault(key, [])
    for change in history:
        if isinstance(change.key, AllRows):
            keys = [key for key in found if _table_of(key) == change.key.table]
        else:
            keys = [key for key in (change.key, change.moved_from) if key is not None]
        for key in keys:
            found[key].append(change)
    return found


def _state_of(change: Change, key: Hashable) -> Any:
    """Return what a change makes of one of its keys."""
    return change.state if change.key == key else None


def _arrived(seen: Sequence[Seen]) -> dict[Hashable, set[Any]]:
    """Return by change the keys that its events had: a row that moved may arrive as two halves."""
    found: dict[Hashable, set[Any]] = defaultdict(set)
    for event in seen:
        if event.name is not None:
            found[event.name] |= {event.key, event.moved_from}
    return found


def _reached(change: Change, key: Hashable, arrived: Mapping[Hashable, set[Any]]) -> bool:
    keys = arrived.get(change.name, set())
    return change.key in keys if isinstance(change.key, AllRows) else key in keys


def _copies(seen: Sequence[Seen]) -> dict[Hashable, list[Any]]:
    found: dict[Hashable, list[Any]] = defaultdict(list)
    for event in seen:
        if event.name is None:
            found[event.key].append(event.state)
    return found


def _alien(history: Sequence[Change], streamed: Sequence[Seen]) -> list[str]:
    known = {change.name for change in history}
    return _told("arrived but never happened", [e.name for e in streamed if e.name not in known])


def _out_of_order(history: Sequence[Change], streamed: Sequence[Seen]) -> list[str]:
    place = {change.name: index for index, change in enumerate(history)}
    latest: dict[Hashable, int] = {}
    latest_of_table: dict[str, int] = {}
    first_seen: set[Hashable] = set()
    wrong = []
    for event in streamed:
        if event.name in first_seen or event.name not in place:
            continue
        first_seen.add(event.name)
        at, table = place[event.name], _table_of(event.key)
        keys = [key for key in (event.key, event.moved_from) if key is not None]
        if isinstance(event.key, AllRows):
            before = latest_of_table.get(table, -1)
        else:
            before = max(latest.get(key, -1) for key in [*keys, AllRows(table)])
        if at < before:
            wrong.append((event.key, event.name))
        for key in keys:
            latest[key] = max(at, latest.get(key, -1))
        latest_of_table[table] = max(at, latest_of_table.get(table, -1))
    return _told("arrived first after a later change of its row", wrong)


def _changed_on_replay(history: Sequence[Change], seen: Sequence[Seen]) -> list[str]:
    states = {change.name: change.state for change in history}
    left = {change.name: [change.moved_from] for change in history}
    ids: dict[Hashable, set[str]] = defaultdict(set)
    names: dict[str, set[Any]] = defaultdict(set)
    wrong_state = []
    for event in seen:
        state = _as_logged(states.get(event.name), event.state)
        names[event.event_id].add((event.name, event.key, repr(state)))
        if event.name is not None:
            ids[event.name].add(event.event_id)
            is_left = event.state is None and event.key in left.get(event.name, ())
            if event.name in states and states[event.name] != state and not is_left:
                wrong_state.append((event.name, event.state, states[event.name]))
    return [
        *_told("arrived under several event ids", [n for n, told in ids.items() if len(told) > 1]),
        *_told("event id names several changes", [i for i, told in names.items() if len(told) > 1]),
        *_told("arrived with another content (name, seen, true)", wrong_state),
    ]


def _as_logged(true: Any, seen: Any) -> Any:
    """Return a state without what a reader added of values that the log leaves out.

    Whether it added the right ones shows in the rows' last states.
    """
    if not isinstance(true, dict) or not isinstance(seen, dict):
        return seen
    return {
        name: UNCHANGED if true.get(name) == UNCHANGED else value for name, value in seen.items()
    }


def _wrong_end(
    history: Sequence[Change], seen: Sequence[Seen], table: Mapping[Hashable, Any] | None
) -> list[str]:
    last_true, last_seen = _last_states(history), _last_states(seen)
    wrong = [
        (key, last_seen.get(key), state)
        for key, state in last_true.items()
        if not _agrees(state, last_seen.get(key))
    ]
    found = _told("ends in another state (key, seen, true)", wrong)
    if table is None:
        return found
    alive = {key: state for key, state in last_seen.items() if state is not None}
    rows = [
        (key, alive.get(key), table.get(key))
        for key in table.keys() | alive.keys()
        if table.get(key) != alive.get(key)
    ]
    return [*found, *_told("differs from the table's row (key, seen, true)", rows)]


def _last_states(events: Sequence[Change] | Sequence[Seen]) -> dict[Hashable, Any]:
    """Apply events one after the other, as a consumer who keeps a copy of the table."""
    states: dict[Hashable, Any] = {}
    for event in events:
        if isinstance(event.key, AllRows):
            gone = [key for key in states if _table_of(key) == event.key.table]
            states.update(dict.fromkeys(gone))
            continue
        # A copy that was read after the row had moved holds it under its new key already, and a
        # replay may name a row that has moved on: what is known of either key counts.
        state = _filled(event.state, states.get(event.moved_from))
        state = _filled(state, states.get(event.key))
        if event.moved_from is not None:
            states[event.moved_from] = None
        states[event.key] = state
    return states


def _filled(state: Any, former: Any) -> Any:
    """Put what a row had before in the place of what its change left out."""
    if not isinstance(state, dict) or not isinstance(former, dict):
        return state
    return {
        name: former.get(name, UNCHANGED) if value == UNCHANGED else value
        for name, value in state.items()
    }


def _agrees(true: Any, seen: Any) -> bool:
    """Compare two states; the history may not know what a row had before it began."""
    if not isinstance(true, dict) or not isinstance(seen, dict):
        return bool(true == seen)
    return true.keys() == seen.keys() and all(
        value in (UNCHANGED, seen[name]) for name, value in true.items()
    )


def _table_of(key: Hashable) -> str:
    if isinstance(key, AllRows):
        return key.table
    return str(key[0]) if isinstance(key, tuple) else ""


def _repeated(seen: Sequence[Seen]) -> list[str]:
    counted: dict[str, int] = defaultdict(int)
    for event in seen:
        counted[event.event_id] += 1
    return _told("arrived more than once", [i for i, count in counted.items() if count > 1])


def _told(what: str, found: Sequence[Any]) -> list[str]:
    if not found:
        return []
    some = ", ".join(repr(one) for one in found[:SHOWN])
    return [f"{len(found)} {what}: {some}"]
