"""Names to ``"module:Class"`` strings, so that naming a plug-in imports no driver.

Third parties register under the entry-point groups ``deltaforge.sources``, ``deltaforge.sinks``,
``deltaforge.processors``, ``deltaforge.envelopes``, ``deltaforge.encodings`` and
``deltaforge.stores``; those are looked up last, so they cannot replace ours silently.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from airflow_provider_deltaforge.errors import SpecError

_ROOT = "airflow_provider_deltaforge"


@dataclass(frozen=True, slots=True)
class PluginRegistry:
    """One kind of plug-in, and the ones this package ships."""

    kind: str
    group: str
    shipped: Mapping[str, str]

    def names(self) -> list[str]:
        """Return every known name, third-party ones included."""
        return sorted({*self.shipped, *(point.name for point in self._installed())})

    def load(self, name: str) -> Any:
        """Return the class registered under ``name``, importing it now.

        Raises:
            SpecError: no plug-in has that name, or an installed one lacks a method.
        """
        if name in self.shipped:
            return load_object(self.shipped[name])
        for point in self._installed():
            if point.name == name:
                return _whole(self.kind, name, point.load())
        known = self.names()
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SpecError(f"unknown {self.kind} {name!r}{hint} (known: {', '.join(known)})")

    def _installed(self) -> Iterator[Any]:
        return iter(entry_points(group=self.group))


def load_object(place: str) -> Any:
    """Return what ``module:name`` names, importing it now.

    A description names its worker so: the worker imports the description, and more libraries.
    """
    module_name, _, attribute = place.partition(":")
    return getattr(import_module(module_name), attribute)


def _whole(kind: str, name: str, plugin: Any) -> Any:
    """Return somebody else's class, unless it leaves a part of the contract out."""
    missing = sorted(getattr(plugin, "__abstractmethods__", ()))
    if missing:
        raise SpecError(
            f"{kind} {name!r} ({plugin.__module__}.{plugin.__qualname__}) cannot be used: it does "
            f"not define {', '.join(missing)}"
        )
    return plugin


SOURCES = PluginRegistry(
    "source",
    "deltaforge.sources",
    {
        "mysql": f"{_ROOT}.sources.mysql.source:MySqlSource",
        "postgres": f"{_ROOT}.sources.postgres.source:PostgresSource",
        "scripted": f"{_ROOT}.sources.scripted:ScriptedSource",
        "turso": f"{_ROOT}.sources.turso.source:TursoSource",
    },
)

PROCESSORS = PluginRegistry(
    "processor",
    "deltaforge.processors",
    {
        "contract": f"{_ROOT}.processors.data_contract.settings:DataContract",
        "filter": f"{_ROOT}.processors.filter.settings:Filter",
        "flatten": f"{_ROOT}.processors.flatten.settings:Flatten",
        "javascript": f"{_ROOT}.processors.javascript.settings:JavaScript",
        "mask": f"{_ROOT}.processors.mask.settings:Mask",
        "outbox": f"{_ROOT}.processors.outbox.settings:Outbox",
        "python": f"{_ROOT}.processors.python.processor:Python",
        "sql": f"{_ROOT}.processors.sql:Sql",
    },
)

SINKS = PluginRegistry(
    "sink",
    "deltaforge.sinks",
    {
        "file": f"{_ROOT}.sinks.file:FileSink",
        "http": f"{_ROOT}.sinks.http:HttpSink",
        "kafka": f"{_ROOT}.sinks.kafka:KafkaSink",
        "memory": f"{_ROOT}.sinks.memory:MemorySink",
        "nats": f"{_ROOT}.sinks.nats:NatsSink",
        "redis": f"{_ROOT}.sinks.redis:RedisSink",
        "stdout": f"{_ROOT}.sinks.stdout:StdoutSink",
    },
)

ENVELOPES = PluginRegistry(
    "envelope",
    "deltaforge.envelopes",
    {
        "cloudevents": f"{_ROOT}.envelopes.cloudevents:CloudEventsEnvelope",
        "debezium": f"{_ROOT}.envelopes.debezium:DebeziumEnvelope",
        "native": f"{_ROOT}.envelopes.native:NativeEnvelope",
    },
)

ENCODINGS = PluginRegistry(
    "encoding",
    "deltaforge.encodings",
    {
        "avro": f"{_ROOT}.encodings.avro:AvroEncoding",
        "json": f"{_ROOT}.encodings.json:JsonEncoding",
    },
)

STORES = PluginRegistry(
    "storage backend",
    "deltaforge.stores",
    {
        "memory": f"{_ROOT}.storage.memory:MemoryStore",
        "postgres": f"{_ROOT}.storage.postgres:PostgresStore",
        "sqlite": f"{_ROOT}.storage.sqlite:SqliteStore",
    },
)
