"""A secret in every setting that can hold one, found by walking the models of all plug-ins."""

import base64
import copy
import functools
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import nkeys
from pydantic import BaseModel, SecretStr

from airflow_provider_deltaforge import plugins
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.spec.policies import StorageSettings
from tests.sinks.certificates import certified

CANARY = "c4n4ry"
GONE = "127.0.0.1:1"
"""Where nobody listens."""

# What a document of a plug-in must say at least; a new plug-in says it here.
_NEEDED: dict[str, dict[str, Any]] = {
    "mysql": {"dsn": f"mysql://cdc@{GONE}/shop", "tables": ["shop.orders"]},
    "postgres": {
        "dsn": f"postgresql://cdc@{GONE}/shop",
        "tables": ["public.orders"],
        "publication": "p",
        "slot": "s",
    },
    "turso": {"url": "/nowhere/shop.db", "tables": ["orders"]},
    "contract": {"tables": [{"table": "orders"}]},
    "javascript": {"inline": "function processBatch(events) { return events; }"},
    "mask": {"rules": [{"columns": ["shop.orders.name"], "action": "redact"}]},
    "python": {"function": "json:loads"},
    "sql": {"query": "select * from events"},
    "file": {"path": "/tmp/canary.jsonl"},
    "http": {"url": f"http://{GONE}/events", "send_timeout_secs": 1},
    "kafka": {"brokers": GONE, "topic": "orders", "send_timeout_secs": 1},
    "nats": {"url": f"nats://{GONE}", "subject": "orders", "connect_timeout_secs": 1},
    "redis": {"uri": f"redis://{GONE}", "stream": "orders", "connect_timeout_secs": 1},
    "avro": {"schema_registry_url": f"http://{GONE}"},
    "storage": {"backend": "postgres", "dsn": f"postgresql://deltaforge@{GONE}/state"},
    "cloudevents": {"type_prefix": "com.example"},
}
# What must stand beside a secret.
_BESIDE: dict[str, dict[str, Any]] = {
    "nats.password": {"username": "u"},
    "redis.password": {"username": "u"},
    "avro.password": {"username": "u"},
    "http.key_password": {"url": f"https://{GONE}/events"},
    "redis.key_password": {"uri": f"rediss://{GONE}"},
    "avro.key_password": {"schema_registry_url": f"https://{GONE}"},
    "http.proxy": {"proxy": f"http://{GONE}"},
    "mysql.snapshot.dsn": {"snapshot": {"mode": "initial", "dsn": f"mysql://cdc@{GONE}/shop"}},
    "postgres.snapshot.dsn": {
        "snapshot": {"mode": "initial", "dsn": f"postgresql://cdc@{GONE}/shop"}
    },
}
_KEYS = {"headers": "X-Api-Key", "client_conf": "sasl.password"}
_ADDRESSES = {"dsn", "uri", "url", "proxy", "schema_registry_url"}


@dataclass(frozen=True)
class Place:
    """A setting that can hold a secret."""

    kind: str
    """``source``, ``processor``, ``sink``, ``encoding`` or ``storage``."""
    plugin: str
    key: tuple[str, ...]
    is_address: bool

    @property
    def name(self) -> str:
        """Its key, for people and for names."""
        return ".".join([self.plugin, *self.key])


def places() -> list[Place]:
    """Return every place, by plug-in."""
    rooms = {
        "source": plugins.SOURCES,
        "processor": plugins.PROCESSORS,
        "sink": plugins.SINKS,
        "encoding": plugins.ENCODINGS,
    }
    models = [
        (kind, name, room.load(name)) for kind, room in rooms.items() for name in room.names()
    ]
    models.append(("storage", "storage", StorageSettings))
    return [
        Place(kind, name, key, is_address)
        for kind, name, model in models
        for key, is_address in _of_model(model)
    ]


def _of_model(model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], bool]]:
    for name, info in model.model_fields.items():
        types = list(_types(info.annotation))
        for nested in types:
            if isinstance(nested, type) and issubclass(nested, BaseModel):
                yield from (((name, *key), address) for key, address in _of_model(nested))
        if name in _KEYS:
            yield (name, _KEYS[name]), False
        elif name in _ADDRESSES and (str in types or SecretStr in types):
            yield (name,), True
        elif SecretStr in types:
            yield (name,), False


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)


@dataclass
class Planted:
    """Documents with a secret in every place, and what no answer may hold."""

    documents: dict[str, dict[str, Any]]
    environment: dict[str, str]
    texts: set[str]
    refused: dict[str, str]
    """Places that take no secret, with the error."""
    directory: tempfile.TemporaryDirectory[str]
    """Keys locked with secrets; gone with this process."""

    def found_in(self, text: str) -> list[str]:
        """Return which secrets a text holds."""
        return sorted(secret for secret in {CANARY, *self.texts} if secret in text)


@functools.cache
def planted() -> Planted:
    """Return documents, with the secrets inline and in variables.

    ``sinks-inline`` and ``sinks-variable`` have every sink and processor; each source, each block
    of a source and each state store has two of its own.
    """
    result = Planted({}, {}, set(), {}, tempfile.TemporaryDirectory())
    numbers = itertools.count()
    for how in ("inline", "variable"):
        together: dict[str, list[dict[str, Any]]] = {"sinks": [], "processors": []}
        for place in places():
            number = next(numbers)
            secret = _secret(place, number)
            result.texts.add(secret)
            value = secret if how == "inline" else f"${{CANARY_{number}}}"
            files = _files(place, secret, Path(result.directory.name, f"k{number}"))
            part = _part(place, value, number, files)
            try:
                text = json.dumps(_document(f"only-{number}", **part))
                with mock.patch.dict(os.environ, {f"CANARY_{number}": secret}):
                    load(text).refuse_unbuilt()
            except SpecError as error:
                result.refused[f"{place.name} {how}"] = str(error)
                continue
            if how == "variable":
                result.environment[f"CANARY_{number}"] = secret
            for kind in together:
                together[kind] += part.get(kind, [])
            if place.kind in {"source", "storage"}:
                name = "-".join([place.plugin, *place.key[:-1], how])
                result.documents[name] = _document(name, **part)
        result.documents[f"sinks-{how}"] = _document(f"sinks-{how}", **together)
    return result


def _secret(place: Place, number: int) -> str:
    text = f"{CANARY}{number}" + "x" * 12 + "end"  # A mask wants 16 characters.
    if place.key[-1] == "signing_secret":
        return base64.b64encode(f"{text}{text}".encode()).decode()
    if place.key[-1] == "nkey_seed":
        seed: bytes = nkeys.encode_seed(text.encode().ljust(32), nkeys.PREFIX_BYTE_USER)
        return seed.decode()
    return text


def _files(place: Place, secret: str, stem: Path) -> dict[str, str]:
    """Return what a password of a key opens: without files, a driver fails before it connects."""
    if place.key[-1] != "key_password":
        return {}
    client = certified(stem.parent, stem.name, key_password=secret)
    return {"cert_file": str(client.certificate), "key_file": str(client.key)}


def _part(place: Place, value: str, number: int, files: dict[str, str]) -> dict[str, Any]:
    part_id = f"p{number}"
    config = {**_NEEDED.get(place.plugin, {}), **_BESIDE.get(place.name, {}), **files}
    config = copy.deepcopy(config)  # What is nested is changed below.
    inner = config
    for name in place.key[:-1]:
        inner = inner.setdefault(name, {})
    if place.is_address:
        address = inner[place.key[-1]]
        scheme, _, rest = address.rpartition("://")
        user = "" if "@" in rest else "user"
        host = f"{user}:{value}@{rest}" if user else rest.replace("@", f":{value}@")
        value = f"{scheme}://{host}" if scheme else f"file:{rest}?authToken={value}"
    inner[place.key[-1]] = value
    if place.kind == "encoding":
        encoding = {"type": place.plugin, **config}
        kafka = {"id": part_id, **_NEEDED["kafka"], "encoding": encoding}
        return {"sinks": [{"type": "kafka", "config": kafka}]}
    if place.kind == "processor":
        return {"processors": [{"type": place.plugin, "id": part_id, **config}]}
    if place.kind == "storage":
        return {"storage": config}
    part = {"type": place.plugin, "config": {"id": part_id, **config}}
    return {"source": part} if place.kind == "source" else {"sinks": [part]}


def _document(name: str, **parts: Any) -> dict[str, Any]:
    now_ms = int(time.time() * 1000)  # A new pipeline starts at what is written from then on.
    pace = {"transactions": 100_000, "rows": 2, "rate": 20.0, "started_ms": now_ms}
    scripted = {"id": f"{name}-source", **pace}
    spec = {
        "source": {"type": "scripted", "config": scripted},
        "sinks": [{"type": "file", "config": {"id": "out", "path": f"/tmp/canary-{name}.jsonl"}}],
        **{key: value for key, value in parts.items() if value},
    }
    metadata = {"name": name, "tenant": "acme"}
    return {"apiVersion": "deltaforge/v1", "kind": "Pipeline", "metadata": metadata, "spec": spec}
