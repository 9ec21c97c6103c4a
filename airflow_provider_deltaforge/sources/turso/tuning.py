"""How often a source counts, and how long it waits: what no document asks for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TursoTuning:
    """The defaults are what runs; tests that wait have others. In seconds.

    Attributes:
        busy_s: how long to wait for others who have the file.
        audit_s: between two counts of the rows, which show those that were not captured.
        connect_s: how long connecting to a server may take.
        answer_s: how long a server may be silent.
    """

    busy_s: float = 10.0
    audit_s: float = 30.0
    connect_s: float = 10.0
    answer_s: float = 12.0


TURSO_TUNING = TursoTuning()
