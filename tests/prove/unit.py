"""What a proof is made of: units that a worker runs on its own, each for one case or several."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.prove.servers import Servers

Case = dict[str, Any]
Add = Callable[[Case], None]


@dataclass(frozen=True)
class Unit:
    """A part of a proof that can be run alone, on any worker."""

    area: str
    name: str
    """For people, and for ``--only``."""
    run: str
    """``module:function``; takes a ``Task``."""
    cases: Sequence[Case]
    """What the results will be of: each holds what names it."""
    kind: str
    """Units of one kind take about the same time."""
    seconds: float
    """About what it takes on a quiet machine of two cores, beside another one."""
    limit_s: float = 900.0
    """Afterwards it is ended, and what it has not shown counts as failed."""
    servers: tuple[str, ...] = ()
    """That it shares with others; units with the same ones follow each other."""


@dataclass
class Task:
    """A unit as a worker gets it."""

    cases: Sequence[Case]
    home: Path
    """An own directory; kept if something is wrong."""
    servers: Servers
    add: Add
    """Takes the result of each case as soon as it is there."""
    started: Mapping[str, Any] = field(default_factory=dict)
    """The unit's servers, by name."""
