"""From text to pipelines: YAML, then variables, then every key; all errors at once.

A document is stored and sent unexpanded (``expand=False``); the process that opens the
connections loads it again with its own environment. Whoever has a text at hand may load it: what
this process has loaded before is handed out again.
"""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.explain import explain
from airflow_provider_deltaforge.spec.variables import Expansion
from airflow_provider_deltaforge.spec.yaml_text import (
    BYTES_MAX,
    Key,
    Parsed,
    Problem,
    check_size,
    parse,
    spell,
)

_SUFFIXES = frozenset({".yaml", ".yml"})

_LOADED_MAX = 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A pipeline that was loaded with this process's own environment."""

    pipeline: Pipeline
    read: Mapping[str, str | None]
    """What each variable that was looked up held."""

    def is_current(self) -> bool:
        """Return whether the variables still hold the same."""
        return all(os.environ.get(name) == value for name, value in self.read.items())


_loaded: dict[tuple[str, bool], _Loaded] = {}


def load(
    text: str,
    environment: Mapping[str, str] | None = None,
    *,
    expand: bool = True,
    origin: str = "",
) -> Pipeline:
    """Read one pipeline document.

    Loaded again with the process's own environment, or unexpanded, it is the same pipeline, unless
    a variable that it names has changed.

    Args:
        text: YAML or JSON.
        environment: Values of variables; the process's own environment if None.
        expand: False leaves ``${VAR}`` as it is written, which only text settings can hold; a
            number or choice then takes its default (``${VAR:-10}``).
        origin: Where the text comes from, for errors.

    Raises:
        SpecError: the document is wrong; every problem is named with its key and line.
    """
    key = (text, expand)
    is_shared = environment is None or not expand
    known = _loaded.get(key) if is_shared else None
    if known is not None and known.is_current():
        return known.pipeline
    read: dict[str, str | None] = {}
    try:
        pipeline, problems = _check(text, _variables(environment, expand=expand), read)
    except SpecError as error:
        raise SpecError(f"{origin}: {error}" if origin else str(error)) from error
    if pipeline is None or problems:
        raise SpecError(_sum_up(problems, origin))
    if is_shared:
        for oldest in list(_loaded)[: max(0, len(_loaded) + 1 - _LOADED_MAX)]:
            _loaded.pop(oldest, None)
        _loaded[key] = _Loaded(pipeline, read)
    return pipeline


def variables_of(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a document names and an environment holds, with their values."""
    read: dict[str, str | None] = {}
    with suppress(SpecError):  # Whoever loads it hears what is wrong.
        _check(text, environment, read)
    return {name: value for name, value in read.items() if value is not None}


def check(
    text: str, environment: Mapping[str, str] | None = None, *, expand: bool = True
) -> list[Problem]:
    """Return everything that is wrong with a document; nothing when it loads."""
    try:
        return _check(text, _variables(environment, expand=expand), {})[1]
    except SpecError as error:
        return [Problem("", None, str(error))]


def read_document(path: str | Path) -> str:
    """Return the text of a document in a file.

    Raises:
        SpecError: it cannot be read, is too large, or is no text in UTF-8.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            check_size(max(path.stat().st_size, 0))
            content = file.read(BYTES_MAX + 1)  # A pipe says nothing of its size.
        check_size(len(content))
        return content.decode("utf-8-sig")
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path}: cannot be read: not UTF-8 (byte {error.start + 1}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}; check its name") from error


def documents_at(path: Path) -> list[Path]:
    """Return a file, or every ``*.yaml`` and ``*.yml`` below a directory, in order."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES)


def spec_hash(text: str) -> str:
    """Return a SHA-256 (64 hex digits) over what a document says, unexpanded.

    Comments, indentation, quoting and the order of keys do not change it.

    Raises:
        SpecError: the text is not YAML.
    """
    data = parse(text).data
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _variables(environment: Mapping[str, str] | None, *, expand: bool) -> Mapping[str, str] | None:
    if not expand:
        return None
    return os.environ if environment is None else environment


def _check(
    text: str, environment: Mapping[str, str] | None, read: dict[str, str | None]
) -> tuple[Pipeline | None, list[Problem]]:
    """Return the pipeline, if it is one, and what is wrong; ``read`` gets its variables."""
    parsed = parse(text)
    expansion = Expansion(parsed, environment, read=read)
    data = expansion.expand(parsed.data)
    problems = [*parsed.problems, *expansion.problems]
    if not isinstance(data, dict):
        return None, [Problem("", 1, "the document is not a map; begin with 'metadata' and 'spec'")]
    filled = _fill_ids(data)
    pipeline, wrong = _validate(parsed, expansion, data)
    for key, name in filled if pipeline else ():
        _log.warning("%s is not given, using %r", spell(key), name)
    # A reference that could not be expanded is reported once, not again as a wrong value.
    known = {problem.key for problem in problems}
    problems += [problem for problem in wrong if problem.key not in known]
    problems.sort(key=lambda problem: (problem.line or 0, problem.key))
    return pipeline, problems


def _validate(
    parsed: Parsed, expansion: Expansion, data: dict[str, Any]
) -> tuple[Pipeline | None, list[Problem]]:
    try:
        return Pipeline.model_validate(data), []
    except ValidationError as error:
        wrong = explain(error, parsed, data, expansion.used)
    # Unexpanded, a number or a choice cannot hold a reference: its default stands in.
    stand_in = {key: expansion.verbatim[key] for key, _ in wrong if expansion.verbatim.get(key)}
    if stand_in:
        for key, default in stand_in.items():
            _put(data, key, default)
            del expansion.verbatim[key]
        return _validate(parsed, expansion, data)
    return None, [_unexpanded(problem, key, expansion) for key, problem in wrong]


def _unexpanded(problem: Problem, key: Key, expansion: Expansion) -> Problem:
    if key not in expansion.verbatim:
        return problem
    message = f"{problem.message}; unexpanded, this needs a default: '${{NAME:-value}}'"
    return Problem(problem.key, problem.line, message)


def _put(data: Any, key: Key, value: Any) -> None:
    for part in key[:-1]:
        data = data[part]
    data[key[-1]] = value


def _sum_up(problems: list[Problem], origin: str) -> str:
    count = f"{len(problems)} error{'s' if len(problems) > 1 else ''}"
    head = f"{origin}: {count}" if origin else f"the pipeline document has {count}"
    return "\n".join([f"{head}:", *(f"  {problem}" for problem in problems)])


def _fill_ids(data: Mapping[str, Any]) -> list[tuple[Key, str]]:
    """Put the missing ids into a document.

    A processor gets its type, and an ordinal when there are several. A source or sink gets its type
    and nothing more: its checkpoints are filed under the id, and an ordinal would hand one sink's
    checkpoint to another as soon as somebody reorders the list. Two sinks of one type need ids.

    Returns:
        Where, and which; except processors that got their type alone, which is what they expect.
    """
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return []
    return [*_source_id(spec), *_sink_ids(spec), *_processor_ids(spec)]


def _source_id(spec: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    entry: Any = spec.get("source")
    if _lacks_id(entry):
        entry["config"]["id"] = entry["type"]
        yield ("spec", "source", "config", "id"), entry["type"]


def _sink_ids(spec: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    entries = spec.get("sinks")
    if not isinstance(entries, list):
        return
    kinds = Counter(str(entry.get("type")) for entry in entries if isinstance(entry, dict))
    for index, entry in enumerate(entries):
        if _lacks_id(entry) and kinds[entry["type"]] == 1:
            entry["config"]["id"] = entry["type"]
            yield ("spec", "sinks", index, "config", "id"), entry["type"]


def _processor_ids(spec: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    entries = spec.get("processors")
    if not isinstance(entries, list):
        return
    taken = {str(entry["id"]) for entry in entries if isinstance(entry, dict) and "id" in entry}
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or "id" in entry or not isinstance(entry.get("type"), str):
            continue
        name, ordinal = entry["type"], 1
        while name in taken:
            ordinal += 1
            name = f"{entry['type']}-{ordinal}"
        entry["id"] = name
        taken.add(name)
        if ordinal > 1:
            yield ("spec", "processors", index, "id"), name


def _lacks_id(entry: Any) -> bool:
    """Return whether an entry could use its type as its id."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("type"), str)
        and isinstance(entry.get("config"), dict)
        and "id" not in entry["config"]
    )
