"""What a Spark user names in the options of a DataFrame source: a document, never a secret."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.spec.yaml_text import parse

_KNOWN = ("path", "document", "source")
_URL_PASSWORD = re.compile(r"[A-Za-z][\w+.-]*://[^\s:/@]*:(?P<password>[^\s@]+)@")
_SECRET_KEY = re.compile(r"password|passwd|secret|token|api_?key", re.IGNORECASE)
_REFERENCES = re.compile(r"(\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\})+")


def document_of(options: Mapping[str, str]) -> str:
    """Return the pipeline document that the options name, variables unexpanded.

    Args:
        options: exactly one of ``path`` (a file on this machine), ``document`` (its text) or
            ``source`` (only the ``spec.source`` block, as YAML).

    Raises:
        SpecError: none or several are given, the document is wrong or asks for what is not
            built, or an option, which Spark shows in plans, holds a password.
    """
    named = [name for name in _KNOWN if options.get(name)]
    if len(named) != 1:
        raise SpecError(
            "name the log with exactly one option: 'path' or 'document' for a pipeline document, "
            f"or 'source' for its spec.source block (given: {', '.join(named) or 'none'})"
        )
    name = named[0]
    text = _read(options[name]) if name == "path" else options[name]
    if name != "path":
        _refuse_secrets(name, text)
    if name == "source":
        text = _around(text)
    load(text, expand=False, origin=f"option {name!r}").refuse_unbuilt()
    return text


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise SpecError(f"option 'path': {path}: cannot be read: {reason}") from error


def _around(text: str) -> str:
    """Make a pipeline of a source; the DataFrame stands in for its sinks."""
    source = parse(text).data
    if not isinstance(source, Mapping):
        raise SpecError("option 'source': write a map: {type: mysql, config: {…}}")
    if "snapshot" in (source.get("config") or {}):
        raise SpecError(
            "option 'source': config.snapshot: a DataFrame holds the log only; take it out"
        )
    document = {
        "apiVersion": "deltaforge/v1",
        "kind": "Pipeline",
        "metadata": {"name": "spark", "tenant": "spark"},
        "spec": {"source": source, "sinks": [{"type": "stdout", "config": {"id": "frame"}}]},
    }
    return json.dumps(document)


def _refuse_secrets(option: str, text: str) -> None:
    for key, value in _leaves(parse(text).data, ""):
        found = _URL_PASSWORD.search(value)
        password = found["password"] if found else None
        if password is None and _SECRET_KEY.search(key.rpartition(".")[2]):
            password = value
        if password and not _REFERENCES.fullmatch(password):
            raise SpecError(
                f"option {option!r}: {key}: holds a password, and Spark shows options in query "
                "plans; write ${VAR}, which is resolved where the connection is opened, or give "
                "the document as a file in option 'path'"
            )


def _leaves(data: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _leaves(value, f"{key}[{index}]")
    elif isinstance(data, str):
        yield key, data
