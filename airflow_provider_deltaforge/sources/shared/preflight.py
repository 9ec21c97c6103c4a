"""What every source's preflight shares: its findings' forms, and the arithmetic of the forecast."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.sources.contract import Finding

TABLE_BYTES_PER_S = 20 << 20
"""What one table's copy is expected to carry; the forecast only, nothing depends on it."""
HIGH_RISK_PERCENT = 80
WARN_PERCENT = 50
RATE_PROBE_S = 0.5
"""Between the two looks at the log that give its rate."""
NAMED_MAX = 20
"""Names in one text; ``data`` of the finding has all."""

_MIB = 1 << 20


def checked(
    connect: Callable[[], Any],
    look: Callable[[Any], Sequence[Finding]],
    translated: Callable[[BaseException, str], DeltaForgeError],
    name: str = "connection",
) -> Sequence[Finding]:
    """Look at a server over a connection of its own; what goes wrong is a finding.

    Args:
        connect: opens the connection, which is closed in the end.
        look: makes the findings.
        translated: turns the driver's errors into ours.
        name: of the check whose finding it is.
    """
    try:
        connection = connect()
    except DeltaForgeError as error:
        return [failed(name, error)]
    try:
        return look(connection)
    except DeltaForgeError as error:
        return [failed(name, error)]
    except Exception as error:  # noqa: BLE001 - the driver's; a preflight reports, it never fails
        return [failed(name, translated(error, "preflight"))]
    finally:
        connection.close()


def require(check: str, fine: bool, wrong: str, remedy: str) -> Finding:  # noqa: FBT001
    """Return the finding of a condition.

    Args:
        check: its name.
        fine: it is fulfilled.
        wrong: what is there otherwise.
        remedy: what to do about that.
    """
    if fine:
        return Finding(check, "ok", "as needed")
    return Finding(check, "fail", f"{wrong}; {remedy}")


def shortened(names: Sequence[str], more: str = " …") -> str:
    """Return the first names as a text, and ``more`` if there are others."""
    return ", ".join(names[:NAMED_MAX]) + (more if len(names) > NAMED_MAX else "")


def listed(check: str, names: Sequence[str], text: str, verdict: str = "warn") -> list[Finding]:
    """Return one finding about tables, none without any.

    Args:
        check: its name.
        names: of the tables.
        text: what they have in common, and what to do about it.
        verdict: how bad it is.
    """
    if not names:
        return []
    return [Finding(check, verdict, f"{shortened(names)}: {text}", {"tables": list(names)})]


def tables_finding(count: int, patterns: Sequence[str], remedy: str) -> Finding:
    """Return how many tables are captured.

    Args:
        count: so many.
        patterns: the document's, for the text.
        remedy: what to check when there are none.
    """
    if count:
        return Finding("tables", "ok", f"{count} tables are captured", {"count": count})
    wanted = ", ".join(patterns) or "(all)"
    text = f"no table matches source.tables: {wanted}; {remedy}"
    return Finding("tables", "fail", text, {"patterns": list(patterns)})


class TableEstimate(Protocol):
    """What a catalog guesses of a table."""

    @property
    def data_bytes(self) -> int:
        """Return its size."""

    @property
    def rows_estimate(self) -> int:
        """Return its rows."""


@dataclass(frozen=True)
class CopyForecast:
    """How long a copy of tables is expected to take.

    Attributes:
        bytes: to be copied.
        rows: to be copied.
        seconds: it takes.
    """

    bytes: int
    rows: int
    seconds: float

    @classmethod
    def of(cls, tables: Sequence[TableEstimate], max_parallel_tables: int) -> "CopyForecast":
        """Return the forecast for some tables, so many of them at the same time."""
        total = sum(table.data_bytes for table in tables)
        rows = sum(table.rows_estimate for table in tables)
        return cls(total, rows, copy_s(total, len(tables), max_parallel_tables))

    @property
    def data(self) -> dict[str, Any]:
        """The numbers, for a finding."""
        return {
            "bytes": self.bytes,
            "rows_estimate": self.rows,
            "estimate_s": round(self.seconds, 1),
        }

    @property
    def text(self) -> str:
        """The forecast in words."""
        return f"copying {self.bytes / _MIB:.1f} MiB takes about {duration_text(self.seconds)}"


def copy_s(total_bytes: int, tables: int, max_parallel_tables: int) -> float:
    """Return how many seconds a copy is expected to take."""
    return total_bytes / (TABLE_BYTES_PER_S * max(1, min(max_parallel_tables, tables)))


def risk(percent: float) -> str:
    """Return the verdict on a snapshot that takes this share of the log's retention."""
    if percent >= HIGH_RISK_PERCENT:
        return "high_risk"
    return "warn" if percent >= WARN_PERCENT else "ok"


def duration_text(seconds: float) -> str:
    """Return a duration as ``45s``, ``2m5s`` or ``2h1m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    return f"{whole // 3600}h{whole % 3600 // 60}m"


def failed(check: str, error: DeltaForgeError) -> Finding:
    """Return the finding of a check that could not be made."""
    return Finding(check, "fail", str(error), {"error_class": error.error_class})
