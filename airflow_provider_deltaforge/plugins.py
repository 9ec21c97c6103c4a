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
    """One kind of plug-in, and the ones this package ships.

    Attributes:
        kind: what people call it.
        group: of entry points, by which plug-ins of other distributions are found.
        contract: the class that these must be a kind of.
        shipped: ours, by name.
    """

    kind: str
    group: str
    contract: str
    shipped: Mapping[str, str]

    def names(self) -> list[str]:
        """Return every known name, third-party ones included."""
        return sorted({*self.shipped, *(point.name for point in self._installed())})

    def load(self, name: str) -> Any:
        """Return the class registered under ``name``, importing it now.

        Raises:
            SpecError: no plug-in has that name, it cannot be imported, or it is not whole.
        """
        try:
            if name in self.shipped:
                return load_object(self.shipped[name])
            for point in self._installed():
                if point.name == name:
                    return self._whole(name, point.load())
        except (ImportError, AttributeError) as error:
            raise SpecError(
                f"{self.kind} {name!r} cannot be imported: {error}; install what brings it"
            ) from error
        known = self.names()
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SpecError(f"unknown {self.kind} {name!r}{hint} (known: {', '.join(known)})")

    def _whole(self, name: str, plugin: Any) -> Any:
        """Return somebody else's class, unless it leaves a part of the contract out."""
        contract = load_object(self.contract)
        if getattr(contract, "_is_protocol", False):
            missing = {part for part in vars(contract) if not part.startswith("_")}
        elif isinstance(plugin, type) and issubclass(plugin, contract):
            missing = {*contract.__abstractmethods__, *contract.__class_vars__}
        else:
            raise SpecError(
                f"{self.kind} {name!r} cannot be used: it is no subclass of {self.contract}"
            )
        abstract = getattr(plugin, "__abstractmethods__", ())
        lacking = sorted(part for part in missing if not hasattr(plugin, part) or part in abstract)
        if lacking:
            raise SpecError(
                f"{self.kind} {name!r} ({plugin.__module__}.{plugin.__qualname__}) cannot be used: "
                f"it does not define {', '.join(lacking)}"
            )
        return plugin

    def _installed(self) -> Iterator[Any]:
        return iter(entry_points(group=self.group))


def load_object(place: str) -> Any:
    """Return what ``module:name`` names, importing it now.

    A description names its worker so: the worker imports the description, and more libraries.
    """
    module_name, _, attribute = place.partition(":")
    return getattr(import_module(module_name), attribute)


SOURCES = PluginRegistry(
    "source",
    "deltaforge.sources",
    f"{_ROOT}.sources.contract:Source",
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
    f"{_ROOT}.processors.contract:Processor",
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
    f"{_ROOT}.sinks.contract:Sink",
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
    f"{_ROOT}.envelopes.contract:Envelope",
    {
        "cloudevents": f"{_ROOT}.envelopes.cloudevents:CloudEventsEnvelope",
        "debezium": f"{_ROOT}.envelopes.debezium:DebeziumEnvelope",
        "native": f"{_ROOT}.envelopes.native:NativeEnvelope",
    },
)

ENCODINGS = PluginRegistry(
    "encoding",
    "deltaforge.encodings",
    f"{_ROOT}.encodings.contract:Encoding",
    {
        "avro": f"{_ROOT}.encodings.avro:AvroEncoding",
        "json": f"{_ROOT}.encodings.json:JsonEncoding",
    },
)

STORES = PluginRegistry(
    "storage backend",
    "deltaforge.stores",
    f"{_ROOT}.storage.contract:Store",
    {
        "memory": f"{_ROOT}.storage.memory:MemoryStore",
        "postgres": f"{_ROOT}.storage.postgres:PostgresStore",
        "sqlite": f"{_ROOT}.storage.sqlite:SqliteStore",
    },
)
