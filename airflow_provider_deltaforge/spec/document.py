"""The document: one pipeline, checked key by key.

Sources, processors and sinks are looked up by their ``type`` when the document is read, so this
module knows none of them; ``Spec.source``, ``Spec.processors`` and ``Spec.sinks`` hold the
plug-ins' own settings, ready for ``open()``.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PositiveInt,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.plugins import PROCESSORS, SINKS, SOURCES, PluginRegistry
from airflow_provider_deltaforge.spec.choice import choose, configure, find, refusal
from airflow_provider_deltaforge.spec.policies import (
    ArchiveSettings,
    Batch,
    CommitPolicy,
    ConnectionPolicy,
    DeliverySettings,
    Journal,
    Sharding,
    StorageSettings,
    Trigger,
)
from airflow_provider_deltaforge.spec.sensing import PRODUCER, SchemaSensing
from airflow_provider_deltaforge.spec.settings import PluginSettings, Settings
from airflow_provider_deltaforge.spec.template import ROOTS, Template, without_variables

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"

NAME_RULE = "must be 1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit"

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Legal in Kafka topics and file names, and short enough for a prefix and a suffix."""

_Ask = tuple[str, str]
"""A key of the document, and what is asked for there that this release does not do."""
_SETTING = re.compile(r"(?:source\.|sink\.)?([a-z_]+)")


class Metadata(Settings):
    """What the pipeline is called."""

    name: Name
    """Unique; names the pipeline in the state store, in events and in metrics."""
    tenant: Name
    """Whose data it is: ``tenant_id`` of every event, and the prefix of the schema registry."""
    labels: Mapping[str, str] = {}
    """Free labels, to filter lists by."""
    annotations: Mapping[str, str] = {}
    """Free notes; nothing reads them."""


class _Entry(Settings):
    """``{type: …, config: {…}}`` on its way to the plug-in's settings."""

    room: ClassVar[PluginRegistry]

    type: Any
    config: Any = None

    @field_validator("type")
    @classmethod
    def _find(cls, value: Any) -> Any:
        return find(cls.room, value)

    @field_validator("config", mode="before")
    @classmethod
    def _configure(cls, value: Any, info: ValidationInfo) -> Any:
        return configure(info.data["type"], value) if "type" in info.data else value


class _SourceEntry(_Entry):
    room = SOURCES


class _SinkEntry(_Entry):
    room = SINKS


def _source(value: Any) -> Any:
    if isinstance(value, PluginSettings):
        return value
    return _SourceEntry.model_validate(value).config


def _sink(value: Any) -> Any:
    if isinstance(value, PluginSettings):
        return value
    return _SinkEntry.model_validate(value).config


def _processor(value: Any) -> Any:
    return choose(PROCESSORS, value)


class Spec(Settings):
    """What the pipeline does."""

    source: Annotated[Any, BeforeValidator(_source)]
    """Where changes come from: ``{type: …, config: {…}}``."""
    processors: tuple[Annotated[Any, BeforeValidator(_processor)], ...] = ()
    """What happens to them, in order: ``{type: …, id: …, …}`` each."""
    sinks: tuple[Annotated[Any, BeforeValidator(_sink)], ...] = Field(min_length=1)
    """Where they go: ``{type: …, config: {…}}`` each."""
    batch: Batch = Batch()
    """When a batch is closed."""
    commit_policy: CommitPolicy = CommitPolicy()
    """Which sinks must hold a batch before the pipeline goes on."""
    schema_sensing: SchemaSensing = SchemaSensing()
    """Learning what rows and JSON columns hold."""
    journal: Journal = Journal()
    """The dead-letter queue."""
    archive: ArchiveSettings | None = None
    """Keeping the source's log for longer than the source does."""
    storage: StorageSettings | None = None
    """The state store, if not the one the process was started with."""
    sharding: Sharding | None = None
    """How messages are spread downstream."""
    connection_policy: ConnectionPolicy | None = None
    """How to connect to the source."""
    sink_batch_deadline_secs: PositiveInt | None = None
    """How long one sink may take for one batch, in seconds."""
    delivery: DeliverySettings = DeliverySettings()
    """How the stream is carried."""
    trigger: Trigger = Trigger()
    """How long Spark lets one task run."""

    @model_validator(mode="after")
    def _check_ids(self) -> "Spec":
        _check_id(("source", "config", "id"), self.source.id)
        for key, plugins in (("processors", self.processors), ("sinks", self.sinks)):
            seen: set[str] = set()
            for index, plugin in enumerate(plugins):
                place = (key, index, "config", "id") if key == "sinks" else (key, index, "id")
                _check_id(place, plugin.id)
                if plugin.id in seen:
                    raise refusal(place, f"another of the {key} has the id {plugin.id!r}")
                seen.add(plugin.id)
        return self

    @model_validator(mode="after")
    def _obey_connection_policy(self) -> "Spec":
        """Hand the policy on to the source, which is where everybody looks."""
        policy = self.connection_policy
        if policy is None:
            return self
        source, key = self.source, "preferred_replica"
        try:
            if policy.preferred_replica is not None:
                source = source.copied_from(policy.preferred_replica.get_secret_value())
            if policy.limits.max_dedicated_per_source is not None:
                key = "limits.max_dedicated_per_source"
                source = source.within(policy.limits.max_dedicated_per_source)
        except (SpecError, ValueError) as error:
            raise refusal(("connection_policy", *key.split(".")), str(error)) from error
        self.__dict__["source"] = source  # The model is frozen, and not handed out yet.
        return self

    @model_validator(mode="after")
    def _check_producers(self) -> "Spec":
        known = [processor.id for processor in self.processors]
        if self.schema_sensing.enabled and self.schema_sensing.output.emit_events:
            known.append(PRODUCER)
        for index, sink in enumerate(self.sinks):
            for name in getattr(getattr(sink, "filter", None), "producers", ()):
                if name not in known:
                    raise refusal(
                        ("sinks", index, "config", "filter", "producers"),
                        f"no processor has the id {name!r} (known: {', '.join(known) or 'none'})",
                    )
        return self

    @model_validator(mode="after")
    def _check_quorum(self) -> "Spec":
        quorum = self.commit_policy.quorum
        if quorum is not None and quorum > len(self.sinks):
            raise refusal(
                ("commit_policy", "quorum"),
                f"{quorum} sinks cannot be reached with {len(self.sinks)}",
            )
        return self

    @model_validator(mode="after")
    def _check_templates(self) -> "Spec":
        count = None if self.sharding is None else self.sharding.count
        is_used = False
        for index, sink in enumerate(self.sinks):
            is_used |= getattr(sink, "takes_partitions", False)
            for key in dict.fromkeys((getattr(sink, "destination_field", "key"), "key")):
                text = getattr(sink, key, None)
                if not isinstance(text, str):
                    continue
                place = ("sinks", index, "config", key)
                if "shard" in _check_template(place, text):
                    is_used = True
                    _check_shard(place, count, is_key=key == "key")
        if count is not None and not is_used:
            raise refusal(
                ("sharding", "count"),
                "no sink here has partitions, or ${shard} in its topic, stream, subject, URL or "
                "path: write it there, or take count out",
            )
        return self

    @model_validator(mode="after")
    def _give_keys(self) -> "Spec":
        """Let the sharding key be the message key of sinks that name none."""
        text = None if self.sharding is None else self.sharding.key_template
        if text is None:
            return self
        if "shard" in _check_template(("sharding", "key"), text):
            raise refusal(("sharding", "key"), "the shard's number follows from the key")
        self.__dict__["sinks"] = tuple(
            sink.model_copy(update={sink.key_field: text})
            if getattr(sink, "key_field", None) is not None and sink.key_template is None
            else sink
            for sink in self.sinks
        )
        return self


class Pipeline(Settings):
    """A pipeline document."""

    api_version: Literal["deltaforge/v1"] = Field(default="deltaforge/v1", alias="apiVersion")
    """Version of the document's format."""
    kind: Literal["Pipeline"] = "Pipeline"
    """What the document describes."""
    metadata: Metadata
    """What the pipeline is called."""
    spec: Spec
    """What the pipeline does."""
    storage: StorageSettings | None = None
    """The same as ``spec.storage``, beside ``spec``."""

    @model_validator(mode="after")
    def _check_storage(self) -> "Pipeline":
        if self.storage is not None and self.spec.storage is not None:
            raise refusal(("storage",), "the state store is named twice: spec.storage says it, too")
        return self

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.metadata.name

    @property
    def state_store(self) -> StorageSettings | None:
        """The state store that the document names, wherever it does."""
        return self.storage or self.spec.storage

    def unbuilt(self) -> list[str]:
        """Return ``key: what`` for everything asked for that this release does not do."""
        return _unbuilt(self.spec)

    def refuse_unbuilt(self) -> None:
        """Refuse to start a pipeline that asks for what this release does not do.

        Raises:
            SpecError: it does; every key is named.
        """
        missing = self.unbuilt()
        if missing:
            lines = "\n".join(f"  {line}" for line in missing)
            raise SpecError(
                f"pipeline {self.name!r} asks for what this release does not do; "
                f"take these out of the document:\n{lines}"
            )


def _check_id(key: tuple[str | int, ...], name: str) -> None:
    """Refuse an id that no file, table or line of a log could hold: state is filed under it."""
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise refusal(key, NAME_RULE)


def _check_shard(key: tuple[str | int, ...], count: int | None, *, is_key: bool) -> None:
    if is_key:
        raise refusal(key, "'${shard}' follows from the key, and cannot be in it")
    if count is None:
        raise refusal(key, "'${shard}' needs the number of shards, spec.sharding.count")


def _check_template(key: tuple[str | int, ...], text: str) -> set[str]:
    """Refuse what no event has; return what the template names at the top of events."""
    try:
        template = Template.parse(without_variables(text))
    except SpecError as error:
        raise refusal(key, str(error)) from error
    for path in template.paths:
        if path.segments[0] not in ROOTS:
            known = ", ".join(sorted(ROOTS))
            raise refusal(key, f"'${{{path}}}' names no field of an event (known: {known})")
        if path.segments[0] == "source" and len(path.segments) > 1:
            _check_source_field(key, path.segments[1])
    return {path.segments[0] for path in template.paths}


def _check_source_field(key: tuple[str | int, ...], field: str) -> None:
    """Refuse a slip of the pen: sources may add fields, but none that looks like these."""
    close = get_close_matches(field, ("schema", "table"), n=1, cutoff=0.75)
    if close and close[0] != field:
        raise refusal(key, f"'source.{field}' is no field; did you mean 'source.{close[0]}'?")


def _unbuilt(spec: Any) -> list[str]:
    """Return ``key: what`` for what this release does not do, in the order of the document.

    A setting is obeyed or refused by its key, never read and ignored. Whoever builds one of these
    takes its line out.
    """
    asks = [
        *_asked_of("spec.source", spec.source, ".config"),
        *_asks_of_processors(spec),
        *_asks_of_sinks(spec),
        *_asks_of_policies(spec),
    ]
    return [f"{key}: {what}" for key, what in dict.fromkeys(asks)]


def _asked_of(key: str, plugin: Any, settings: str = "") -> Iterator[_Ask]:
    """Yield what a plug-in names; the name of one of its settings becomes part of the key."""
    for what in plugin.unbuilt():
        word = _SETTING.match(what)
        if word and word.group(1) in type(plugin).model_fields:
            rest = what[word.end() :].strip(" :(),")
            yield f"{key}{settings}.{word.group(1)}", rest or "set"
        else:
            yield key, what


def _asks_of_processors(spec: Any) -> Iterator[_Ask]:
    for index, processor in enumerate(spec.processors):
        yield from _asked_of(f"spec.processors[{index}]", processor)


def _asks_of_sinks(spec: Any) -> Iterator[_Ask]:
    for index, sink in enumerate(spec.sinks):
        key = f"spec.sinks[{index}]"
        yield from _asked_of(key, sink, ".config")
        yield from _asked_of(f"{key}.config.envelope", sink.envelope)
        yield from _asked_of(f"{key}.config.encoding", sink.encoding)


def _asks_of_policies(spec: Any) -> Iterator[_Ask]:
    parallelism = spec.delivery.parallelism
    if parallelism > 1 and not spec.processors and not _writes_in_parallel(spec):
        yield (
            "spec.delivery.parallelism",
            f"{parallelism}; here are no processors, and no sink that is written to over several "
            "connections: the stream would be no faster",
        )


def _writes_in_parallel(spec: Any) -> bool:
    return any(
        getattr(sink, "takes_several_writers", False) and not sink.holds_position
        for sink in spec.sinks
    )
