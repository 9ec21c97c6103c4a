"""Secrets that a document holds itself, and the document as it may be stored: without them.

A document is stored as written, and no secret is stored. Each inline secret is therefore replaced
by a reference to a variable of a fixed name, and its value is handed to drivers through their
environment, as the values of any other variable are.
"""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.template import REFERENCE, VARIABLE, is_event_reference
from airflow_provider_deltaforge.spec.variables import INLINE_PREFIX
from airflow_provider_deltaforge.spec.yaml_text import Key, Parsed, Problem, parse, spell

# Addresses hold more than a secret, and mostly none.
_ADDRESSES = frozenset({"dsn", "uri", "url", "proxy", "preferred_replica"})
# The second kind begins with an at sign; an empty one, as of a variable, is followed by a host.
_LOGIN = re.compile(r"//[^@]*:[^@]+@|//[^/@?#:]*:@[^?#]*@", re.DOTALL)
_TOKEN = re.compile(r"(?:^|,)\s*(?:(?:nats|tls)://)?[^@:/,\s]+@")
_PARAMETER = re.compile(
    r"(?:passw(?:or)?d|secret|token|api_?key|[?&](?:key|sig|signature|code))\s*=\s*[^&\s]",
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
    names = {key: _variable(pipeline.name, key) for key, _ in found}
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


def _replaced(text: str, parsed: Parsed, names: Mapping[Key, str]) -> str:
    """Return the text with references in the place of values; all else means the same."""
    wanted = _with(parsed.data, (), names)
    spans = {parsed.spans[key]: f'"${{{name}}}"' for key, name in names.items()}
    for (start, stop), reference in sorted(spans.items(), reverse=True):
        written = text[start:stop]
        ending = written[len(written.rstrip()) :]  # A block of lines ends with its line's end.
        text = f"{text[:start]}{reference}{ending}{text[stop:]}"
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
        if _is_inline(str(raw), model, key):
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


def _is_inline(raw: str, model: Any, key: Key) -> bool:
    name = str(key[-1])
    is_secret = isinstance(model, SecretStr)
    if not is_secret and name not in _ADDRESSES:
        return False
    literal = REFERENCE.sub(_default, raw)
    if name in _ADDRESSES:
        login = is_secret and (_LOGIN.search(literal) or (name == "url" and _TOKEN.search(literal)))
        return bool(login or _PARAMETER.search(literal))
    if key[-2:-1] == ("headers",) and name.lower() in _PLAIN_HEADERS:
        return False
    if "${" in raw:  # As in `Bearer ${TOKEN}`.
        return any(_default(match) for match in REFERENCE.finditer(raw))
    return bool(literal)


def _default(reference: re.Match[str]) -> str:
    """Return the default of a variable that a reference holds."""
    variable = VARIABLE.fullmatch(reference.group(1))
    if variable is None or is_event_reference(reference.group(1).strip()):
        return ""
    return variable.group(2) or ""


def _variable(pipeline: str, key: Key) -> str:
    """Return the name that stands for a secret; the same for the same place."""
    parts = [str(part) for part in key if part not in ("spec", "config")]
    words = re.sub(r"[^A-Z0-9]+", "_", "_".join([pipeline, *parts]).upper()).strip("_")
    return f"{INLINE_PREFIX}{words}_{zlib.crc32(repr((pipeline, key)).encode()):08X}"
