"""Secrets that a document holds itself, and the document without them, as it is stored or shown.

A document is stored as written, and no secret is stored. Each inline secret is therefore replaced
by a reference to a variable of a fixed name, and its value is handed to drivers through their
environment, as the values of any other variable are.
"""

import re
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from pydantic import BaseModel, SecretStr

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.template import REFERENCE, VARIABLE, is_event_reference
from airflow_provider_deltaforge.spec.variables import INLINE_PREFIX
from airflow_provider_deltaforge.spec.yaml_text import Key, Parsed, Problem, parse, spell
from airflow_provider_deltaforge.telemetry.redaction import (
    HIDDEN,
    NATS_SCHEMES,
    QUERY_KEYS,
    SECRET_NAME,
    redacted_address,
    redacted_document,
)

# Addresses hold more than a secret, and mostly none.
_ADDRESSES = frozenset({"dsn", "uri", "url", "proxy", "preferred_replica"})
# It begins with an at sign; an empty password, as of a variable, is followed by a host.
_LOGIN_WITH_AT = re.compile(r"//[^/@?#:]*:@[^?#]*@")
_TOKEN = re.compile(rf"(?:^|,)\s*(?:{NATS_SCHEMES})?[^@:/,\s]+@")
_PARAMETER = re.compile(
    rf"(?:passw(?:or)?d|secret|token|api_?key|{QUERY_KEYS})\s*=\s*[^&\s]",
    re.IGNORECASE,
)
_PLAIN_HEADERS = frozenset(
    {"accept", "accept-encoding", "accept-language", "cache-control", "content-encoding"}
    | {"content-language", "content-type", "prefer", "user-agent"}
)
_MEND = "write ${NAME} there, and set the variable (or an Airflow connection) where drivers start"


@dataclass(frozen=True, slots=True)
class Withheld:
    """A document without its secrets, and what was taken out.

    Attributes:
        text: what may be stored; as written, but for the secrets.
        values: of the variables that the text names instead.
        warnings: where the secrets stand; they hold none.
    """

    text: str
    values: Mapping[str, str]
    warnings: tuple[Problem, ...]


def withhold(text: str, pipeline: Pipeline) -> Withheld:
    """Take the secrets out of a document.

    Args:
        text: the document, unexpanded.
        pipeline: the same document, loaded unexpanded.

    Raises:
        SpecError: a secret stands beside a variable, or as its default: that cannot be taken apart.
    """
    parsed = parse(text)
    found = list(_found(parsed.data, pipeline, ()))
    if not found:
        return Withheld(text, {}, ())
    for key, value in found:
        if "${" in value:
            raise SpecError(
                str(
                    parsed.problem(
                        key, f"a secret stands beside a variable, or as its default; {_MEND}"
                    )
                )
            )
    held = _variables(text)
    names = {key: _variable(pipeline.name, key, held) for key, _ in found}
    return Withheld(
        _replaced(text, parsed, names),
        {names[key]: value for key, value in found},
        tuple(
            parsed.problem(
                key,
                "holds a secret, which is kept out of the state store: only drivers that are "
                f"started with this document have it; {_MEND}",
            )
            for key, _ in found
        ),
    )


def document_for_people(text: str) -> str:
    """Return a document with ``***`` in place of what `withhold` would take out, and more.

    No plug-in is loaded, so the names of keys alone show what is a secret. The text need not be a
    valid document.
    """
    try:
        parsed = parse(text)
    except SpecError:
        return redacted_document(text)
    if parsed.problems:  # Values were left out, as of a key that is there twice.
        return redacted_document(text)
    shown: dict[tuple[int, int], str] = {}
    for key, value in _single_values(parsed.data, ()):
        if value is None or isinstance(value, bool):
            continue
        span, words = parsed.spans[key], _for_people(str(value), key)
        if words is not None:  # By an alias, a value may have several keys.
            shown[span] = words if shown.get(span, words) == words else HIDDEN
    return redacted_document(_spliced(text, shown), is_parsed=True)


def _for_people(raw: str, key: Key) -> str | None:
    """Return what is shown in place of a value; None if all of it is."""
    is_secret = any(isinstance(part, str) and SECRET_NAME.search(part) for part in key)
    name = str(key[-1]) if key else ""
    if not is_secret and name not in _ADDRESSES and key[-2:-1] != ("headers",):
        return None
    if not _is_inline(raw, key, is_secret=True):
        return None
    if name in _ADDRESSES and "\n" not in raw:
        shown = redacted_address(raw)
        if not _is_inline(shown.replace(HIDDEN, ""), key, is_secret=True):
            return shown
    return HIDDEN


def _single_values(value: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _single_values(item, (*key, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _single_values(item, (*key, index))
    else:
        yield key, value


def _spliced(text: str, parts: Mapping[tuple[int, int], str]) -> str:
    """Return the text with other words between some places."""
    pieces, rest = [], 0
    for (start, stop), words in sorted(parts.items()):
        written = text[start:stop]
        ending = written[len(written.rstrip()) :]  # A block of lines ends with its line's end.
        pieces += [text[rest:start], words, ending]
        rest = stop
    return "".join([*pieces, text[rest:]])


def _replaced(text: str, parsed: Parsed, names: Mapping[Key, str]) -> str:
    """Return the text with references in the place of values; all else means the same."""
    wanted = _with(parsed.data, (), names)
    text = _spliced(text, {parsed.spans[key]: f'"${{{name}}}"' for key, name in names.items()})
    try:
        same = parse(text).data == wanted
    except SpecError:
        same = False
    if not same:  # Behind an anchor or a tag, perhaps.
        keys = ", ".join(spell(key) for key in names)
        raise SpecError(f"{keys}: a secret is written so that it cannot be taken out; {_MEND}")
    return text


def _with(value: Any, key: Key, names: Mapping[Key, str]) -> Any:
    if key in names:
        return f"${{{names[key]}}}"
    if isinstance(value, dict):
        return {name: _with(item, (*key, name), names) for name, item in value.items()}
    if isinstance(value, list):
        return [_with(item, (*key, index), names) for index, item in enumerate(value)]
    return value


def _found(raw: Any, model: Any, key: Key) -> Iterator[tuple[Key, str]]:
    """Yield the secrets of a part of the document, beside what it was understood as."""
    if isinstance(raw, str | int | float) and not isinstance(raw, bool):
        # Headers may be numbers; as text, each of these is what it is sent as.
        if _is_inline(str(raw), key, is_secret=isinstance(model, SecretStr)):
            yield key, str(raw)
    elif isinstance(raw, Mapping):
        for name, item in raw.items():
            yield from _found(item, _part(model, name), (*key, name))
    elif isinstance(raw, list) and isinstance(model, Sequence):
        for index, (item, part) in enumerate(zip(raw, model, strict=False)):
            yield from _found(item, part, (*key, index))


def _part(model: Any, name: str) -> Any:
    if isinstance(model, BaseModel):
        fields = type(model).model_fields
        field = next((f for f, info in fields.items() if name in (f, info.alias)), None)
        if field is not None:
            return getattr(model, field)
        return model if name == "config" else None
    return model.get(name) if isinstance(model, Mapping) else None


def _is_inline(raw: str, key: Key, *, is_secret: bool) -> bool:
    name = str(key[-1])
    if not is_secret and name not in _ADDRESSES:
        return False
    literal = REFERENCE.sub(_default, raw)
    if name in _ADDRESSES:
        login = is_secret and (_has_login(literal) or (name == "url" and _TOKEN.search(literal)))
        return bool(login or _PARAMETER.search(literal))
    if key[-2:-1] == ("headers",) and name.lower() in _PLAIN_HEADERS:
        return False
    if "${" in raw:  # As in `Bearer ${TOKEN}`.
        return any(_default(match) for match in REFERENCE.finditer(raw))
    return bool(literal)


def _has_login(address: str) -> bool:
    """Return whether a password stands before an at sign; in one pass, however long it is."""
    for part in address.split("@")[:-1]:
        login = part.partition("//")[2]
        if ":" in login[:-1]:
            return True
    return _LOGIN_WITH_AT.search(address) is not None


def _default(reference: re.Match[str]) -> str:
    """Return the default of a variable that a reference holds."""
    variable = VARIABLE.fullmatch(reference.group(1))
    if variable is None or is_event_reference(reference.group(1).strip()):
        return ""
    return variable.group(2) or ""


def _variables(text: str) -> set[str]:
    """Return the variables that a document names."""
    references = (match.group(1) for match in REFERENCE.finditer(text))
    return {found.group(1) for each in references if (found := VARIABLE.fullmatch(each))}


def _variable(pipeline: str, key: Key, held: Container[str]) -> str:
    """Return the name that stands for a secret: the same for the same place, unless it is held.

    A stored document keeps its variables when an item in front of them is removed from a list.
    """
    parts = [str(part) for part in key if part not in ("spec", "config")]
    words = re.sub(r"[^A-Z0-9]+", "_", "_".join([pipeline, *parts]).upper()).strip("_")
    name = f"{INLINE_PREFIX}{words}_{zlib.crc32(repr((pipeline, key)).encode()):08X}"
    further = (f"{name}_{number}" for number in count(2))
    return next(each for each in chain([name], further) if each not in held)
