"""What applying a document would change, compared with the one that is kept."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_deltaforge.spec.inline_secrets import withhold
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.spec.yaml_text import parse
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.checkpoints import why_source_is_refused
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.telemetry.redaction import redacted_value

ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting that differs; ``before`` or ``after`` is ``ABSENT`` where it is not written."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Plan:
    """What applying would do.

    Attributes:
        name: of the pipeline.
        is_new: no document of this name is kept.
        changes: by key, in the order of the document.
        effects: what follows, in sentences.
    """

    name: str
    is_new: bool
    changes: tuple[SettingChange, ...]
    effects: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return asdict(self)


def plan(store: Store, text: str) -> Plan:
    """Compare a document with the one that is kept; nothing is written.

    Secrets that the documents hold themselves are neither compared nor shown.

    Raises:
        SpecError: the document is wrong, or asks for what this release does not do.
    """
    pipeline = load(text, expand=False)
    pipeline.refuse_unbuilt()
    name = pipeline.metadata.name
    control = Control(store, name)
    kept = control.document()
    before = dict(_settings(parse(kept).data if kept else {}))
    after = dict(_settings(parse(withhold(text, pipeline).text).data))
    changes = tuple(
        SettingChange(key, before.get(key, ABSENT), after.get(key, ABSENT))
        for key in dict.fromkeys([*after, *before])
        if before.get(key, ABSENT) != after.get(key, ABSENT)
    )
    source_id = pipeline.spec.source.id
    return Plan(name, kept is None, changes, tuple(_effects(control, source_id, changes)))


def item_id(item: Any) -> Any:
    """Return the id of a source, processor or sink of a document, None without one.

    It stands in its ``config``, or beside it.
    """
    if not isinstance(item, Mapping):
        return None
    config = item.get("config")
    return item.get("id") or (config.get("id") if isinstance(config, Mapping) else None)


def _effects(control: Control, source_id: str, changes: tuple[SettingChange, ...]) -> Iterator[str]:
    record = control.read()
    if record is None:
        yield "it is new; nothing starts it but `deltaforge run`, `serve` or its DAG"
        return
    refusal = why_source_is_refused(control.store, control.pipeline, source_id)
    if refusal is not None:
        yield f"its driver will not start: {refusal}"
    if not changes:
        yield "nothing changes"
        return
    if record.generation and record.desired != "stopped":
        yield "its driver goes on with the former document until it is started again"
    if record.source_id != source_id and refusal is None:
        yield (
            f"the source is {source_id!r} instead of {record.source_id!r}: positions belong to a "
            "source's id, and there are none yet that would be lost"
        )


def _settings(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield every setting with its key; items of lists are named by their ids."""
    yield from _leaves(redacted_value(document), "")


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, member in value.items():
            yield from _leaves(member, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{key}[{item_id(item) or number}]")
    elif key:
        yield key, value
