"""Looks before the leap: what would stop or spoil a snapshot and its stream."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.sources.contract import Finding

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.turso.source import TursoSource


def preflight(source: "TursoSource") -> Sequence[Finding]:
    """Check the file, its locks, capture and tables; never raises for a finding."""
    try:
        source.head()
    except DeltaForgeError as error:
        return [Finding("file", "fail", str(error), {"error_class": error.error_class})]
    return [Finding("file", "ok", "the file can be followed")]
