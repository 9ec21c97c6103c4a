"""The tables that a session has described, and how the scanner finds their plans."""

import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import (
    WalDecodePlans,
    WalTablePlan,
)
from airflow_provider_deltaforge.sources.postgres.wal.framing_kernel import place_of
from airflow_provider_deltaforge.sources.postgres.wal.messages import (
    Relation,
    TypeName,
    parse_relation,
    parse_type,
    unreadable,
)

_PLACES = 256
_PLANS_MAX = 4096


class Relations:
    """A hash table by oid for the kernel, and the plans behind it.

    Args:
        plan: makes a plan, or None for a table that is not captured.
    """

    def __init__(self, plan: Callable[[Relation], WalTablePlan | None]) -> None:
        self._plan = plan
        self.forget()

    def forget(self) -> None:
        """Begin anew: a new session describes every table again."""
        self.keys = np.full(_PLACES, -1, np.int64)
        self.ordinals = np.full(_PLACES, -1, np.int64)
        self.plans = WalDecodePlans()
        self._by_oid: dict[int, Relation] = {}
        self._known: dict[WalTablePlan, int] = {}
        self._types: dict[int, TypeName] = {}

    def take(self, body: bytes) -> None:
        """Take in a ``Relation`` message, or a ``Type`` message, which precedes its relations.

        Raises:
            RetryableError: the catalog cannot be read now.
            TableError: the relation's rows cannot be decoded.
        """
        if body[:1] == b"Y":
            kind = parse_type(body)
            self._types[kind.oid] = kind
        else:
            self.add(self._with_types(_relation_of(body)))

    def add(self, relation: Relation) -> None:
        """Take in what a relation looks like from here on."""
        plan = self._plan(relation)
        ordinal = -1 if plan is None else self._ordinal(plan)
        if 2 * (len(self._by_oid) + 1) > len(self.keys):
            self._grow()
        self._by_oid[relation.oid] = relation
        self._put(relation.oid, ordinal)

    def captured(self, oid: int) -> Relation | None:
        """Return a captured relation; None for one that is not captured, or not known."""
        place = int(place_of(self.keys, oid))
        return self._by_oid.get(oid) if self.ordinals[place] >= 0 else None

    def prune(self) -> None:
        """Drop plans that no relation needs; only while no row that refers to one is kept."""
        if len(self.plans.plans) <= _PLANS_MAX:
            return
        used = sorted({int(ordinal) for ordinal in self.ordinals if ordinal >= 0})
        plans = tuple(self.plans.plans[ordinal] for ordinal in used)
        moved = {ordinal: at for at, ordinal in enumerate(used)}
        self.ordinals = np.array([moved.get(int(o), -1) for o in self.ordinals], np.int64)
        self.plans = WalDecodePlans(plans)
        self._known = {plan: ordinal for ordinal, plan in enumerate(plans)}

    def _with_types(self, relation: Relation) -> Relation:
        columns = []
        for column in relation.columns:
            kind = self._types.get(column.type_oid)
            if kind is not None:
                column = column._replace(type_schema=kind.schema, type_name=kind.name)  # noqa: PLW2901 - the same column
            columns.append(column)
        return replace(relation, columns=tuple(columns))

    def _ordinal(self, plan: WalTablePlan) -> int:
        if plan not in self._known:
            self._known[plan] = len(self.plans.plans)
            self.plans = WalDecodePlans((*self.plans.plans, plan))
        return self._known[plan]

    def _put(self, oid: int, ordinal: int) -> None:
        place = int(place_of(self.keys, oid))
        self.keys[place] = oid
        self.ordinals[place] = ordinal

    def _grow(self) -> None:
        places = [(int(k), int(o)) for k, o in zip(self.keys, self.ordinals, strict=True) if k >= 0]
        self.keys = np.full(2 * len(self.keys), -1, np.int64)
        self.ordinals = np.full(len(self.keys), -1, np.int64)
        for oid, ordinal in places:
            self._put(oid, ordinal)


def _relation_of(body: bytes) -> Relation:
    try:
        return parse_relation(body)
    except (struct.error, ValueError, IndexError):
        return unreadable(body)
