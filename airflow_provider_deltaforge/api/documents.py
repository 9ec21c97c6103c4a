"""Pipeline documents as the REST API takes and shows them: JSON or YAML, merged key by key."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

from fastapi import Depends, Request

from airflow_provider_deltaforge.api.errors import ApiError
from airflow_provider_deltaforge.control.plan import item_id
from airflow_provider_deltaforge.spec.yaml_text import parse
from airflow_provider_deltaforge.telemetry.redaction import redacted_value

_REMOVED = "$remove"
_YAML = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})

EXAMPLE: Mapping[str, Any] = {
    "apiVersion": "deltaforge/v1",
    "kind": "Pipeline",
    "metadata": {"name": "orders", "tenant": "acme"},
    "spec": {
        "source": {
            "type": "mysql",
            "config": {
                "id": "shop",
                "dsn": "mysql://cdc:${MYSQL_PASSWORD}@db:3306/shop",
                "tables": ["shop.orders"],
            },
        },
        "sinks": [
            {
                "type": "kafka",
                "config": {"id": "kafka", "brokers": "kafka:9092", "topic": "orders"},
            }
        ],
    },
}


def body(example: Mapping[str, Any] = EXAMPLE) -> dict[str, Any]:
    """Return how OpenAPI describes the body of a route that takes a ``DocumentText``."""
    kinds = {
        "application/json": {"schema": {"type": "object"}, "example": example},
        "application/yaml": {"schema": {"type": "string"}},
    }
    return {"requestBody": {"required": True, "content": kinds}}


async def _body_text(request: Request) -> str:
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _YAML:
        try:
            return body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ApiError(422, "INVALID_REQUEST", "body: the document is not UTF-8") from error
    # A form of another site can send neither type without asking the browser first.
    if kind != "application/json":
        message = "send the document as application/json or application/yaml"
        raise ApiError(415, "UNSUPPORTED_MEDIA_TYPE", message)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(422, "INVALID_REQUEST", f"body: not JSON ({error})") from error
    if not isinstance(document, dict):
        raise ApiError(422, "INVALID_REQUEST", "body: a pipeline document is a JSON object")
    return text_of(document)


DocumentText = Annotated[str, Depends(_body_text)]
"""A pipeline document that a request brings: YAML as it is, JSON as ``text_of`` writes it."""


def text_of(document: Mapping[str, Any]) -> str:
    """Return a document as it is stored: as JSON, in which every text stays a text.

    YAML would need quotes around other words for each version of it, such as ``NO`` and ``1e3``.
    """
    return json.dumps(document, indent=2)


def patched(text: str, patch_text: str) -> str:
    """Return a stored document with a partial one laid over it; see ``merged``.

    Raises:
        ApiError: an item is to be removed that is not there, or the partial document is none.
    """
    patch = parse(patch_text)
    if patch.problems:
        raise ApiError(400, "INVALID_REQUEST", "; ".join(map(str, patch.problems)))
    if not isinstance(patch.data, Mapping):
        raise ApiError(422, "INVALID_REQUEST", "body: a partial document is an object of keys")
    return text_of(merged(parse(text).data, patch.data))


@lru_cache(maxsize=1024)  # A page asks for the list of all pipelines every two seconds.
def shown(text: str | None) -> Any:
    """Return a stored document as JSON-able data, its variables unresolved, without secrets.

    The result is shared: its readers leave it as it is.
    """
    return redacted_value(parse(text).data) if text else {}


def merged(document: Any, patch: Any) -> Any:
    """Return a document with a partial one laid over it.

    Objects are merged key by key, and ``null`` removes a key. In a list whose items have an ``id``,
    items of the same id are merged, others are appended, and ``{"id": …, "$remove": true}`` removes
    one. Any other list, and any other value, is replaced.

    Raises:
        ApiError: an item is to be removed that is not there.
    """
    if isinstance(document, Mapping) and isinstance(patch, Mapping):
        result = dict(document)
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(result.get(key), value)
        return result
    if isinstance(patch, list) and patch and all(item_id(item) is not None for item in patch):
        return _merged_items(document if isinstance(document, list) else [], patch)
    if isinstance(patch, Mapping):
        return merged({}, patch)
    return patch


def _merged_items(items: list[Any], patch: list[Any]) -> list[Any]:
    result = list(items)
    for change in patch:
        found = [at for at, item in enumerate(result) if item_id(item) == item_id(change)]
        if _is_removal(change):
            if not found:
                raise ApiError(400, "INVALID_REQUEST", f"there is no {item_id(change)!r} to remove")
            result = [item for at, item in enumerate(result) if at not in found]
        elif found:
            result[found[0]] = merged(result[found[0]], change)
        else:
            result.append(merged({}, change))
    return result


def _is_removal(item: Mapping[str, Any]) -> bool:
    return item.get(_REMOVED) is True
