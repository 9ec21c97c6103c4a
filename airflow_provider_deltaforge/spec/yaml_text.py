"""YAML to plain data, keeping the line of every key.

Stricter than YAML: a key may not come twice, keys are text, dates stay text, and one text holds
one document of bounded size.
"""

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

from airflow_provider_deltaforge.errors import SpecError

Key = tuple[str | int, ...]
"""Where a value is: keys of maps and indexes of lists, from the top."""

NODES_MAX = 50_000
"""Aliases are counted each time they are used, so that a small text cannot become a huge tree."""

BYTES_MAX = 1 << 20
"""The largest document that is read; real ones are a few kilobytes."""

_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a document. Holds no value of the document."""

    key: str
    """For example ``spec.sinks[0].config.topic``; empty for the whole document."""
    line: int | None
    """Counted from 1."""
    message: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.key}: {self.message}" if self.key else f"{place}{self.message}"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A document as plain data, which its readers leave as it is."""

    data: Any
    lines: Mapping[Key, int]
    problems: tuple[Problem, ...] = ()
    spans: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    """Where in the text each single value begins and ends."""

    def line(self, key: Key) -> int | None:
        """Return the line of a key, or of the nearest one around it."""
        for length in range(len(key), -1, -1):
            if key[:length] in self.lines:
                return self.lines[key[:length]]
        return None

    def problem(self, key: Key, message: str) -> Problem:
        """Return a problem at a key."""
        return Problem(spell(key), self.line(key), message)


class _Loader(yaml.SafeLoader):
    """SafeLoader, except that dates, times and the words yes, no, on and off stay text.

    YAML 1.2 and JSON read them so. A setting that is true or false takes those words all the same.
    Nodes are counted as they are made: each takes thousands of times the bytes of its text.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._nodes += 1
        _check_nodes(self._nodes)
        return super().compose_node(parent, index)


_KINDS = {
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+",
    "float": r"""[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?
        |[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)""",
}
_PATTERNS = {
    f"tag:yaml.org,2002:{kind}": re.compile(rf"(?:{pattern})$", re.VERBOSE)
    for kind, pattern in _KINDS.items()
}
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, _PATTERNS.get(tag, pattern))
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def spell(key: Key) -> str:
    """Write a key as people read it: ``spec.sinks[0].config["linger.ms"]``."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


@lru_cache(maxsize=8)
def parse(text: str) -> Parsed:
    """Read one YAML document (or JSON, which is YAML), once per process: the result is shared.

    Raises:
        SpecError: the text is not YAML, holds no or several documents, or is too large.
    """
    check_size(len(text))
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise SpecError("the document is empty; begin with 'metadata' and 'spec'")
        builder = _Builder(loader)
        data = builder.build(node, ())
    except yaml.MarkedYAMLError as error:
        raise SpecError(_not_yaml(error)) from error
    except yaml.YAMLError as error:
        raise SpecError("not YAML: the text holds characters that YAML does not allow") from error
    except RecursionError as error:
        raise SpecError("the document is nested too deeply, or an alias holds itself") from error
    except ValueError as error:
        raise SpecError("the document holds a number that is too long, or not one") from error
    return Parsed(data, builder.lines, tuple(builder.problems), builder.spans)


def check_size(size: int) -> None:
    """Refuse a document that is too large to be one, before it is read.

    Raises:
        SpecError: it is.
    """
    if size > BYTES_MAX:
        raise SpecError(
            f"the document is larger than {BYTES_MAX >> 20} MiB ({size} bytes): is this the right "
            "file? Split it, or move scripts into files of their own"
        )


def _check_nodes(count: int) -> None:
    if count > NODES_MAX:
        raise SpecError(f"the document holds more than {NODES_MAX} values; split it")


def _not_yaml(error: yaml.MarkedYAMLError) -> str:
    # The error's own text quotes the document, where a secret may stand.
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{place}not YAML: {error.problem or error.context}"


class _Builder:
    """Turns nodes into data, collecting lines and problems on the way."""

    def __init__(self, loader: _Loader) -> None:
        self.lines: dict[Key, int] = {}
        self.spans: dict[Key, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self._loader = loader
        self._nodes = 0

    def build(self, node: yaml.Node, key: Key) -> Any:
        self._count()
        self.lines.setdefault(key, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._map(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*key, index)) for index, item in enumerate(node.value)]
        self.spans[key] = (node.start_mark.index, node.end_mark.index)
        value = self._loader.construct_object(node)
        if isinstance(value, str):
            return self._text(value, spell(key), node.start_mark.line + 1)
        if value is None or isinstance(value, int | float):
            return value
        message = "write this as text, a number, true or false; other tags are not read"
        self.problems.append(Problem(spell(key), node.start_mark.line + 1, message))
        return None

    def _text(self, text: str, key: str, line: int) -> str:
        """Return text with the two halves in which JSON escapes a character put together."""
        if text.isascii():
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            message = "half a surrogate pair stands for no character; write both halves, or neither"
            self.problems.append(Problem(key, line, message))
            return text.encode("utf-8", "replace").decode()

    def _map(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        data: dict[str, Any] = {}
        seen: dict[Hashable, int] = {}
        for name_node, value_node, is_own in self._members(node):
            name = self._loader.construct_object(name_node)
            line = name_node.start_mark.line + 1
            if not isinstance(name, str):
                written = getattr(name_node, "value", "")
                message = f"keys are text; put the key {written!r} in quotes"
                self.problems.append(Problem(spell(key), line, message))
                continue
            name = self._text(name, spell(key), line)
            here = (*key, name)
            if name in seen and is_own:
                message = f"the key is there twice, first on line {seen[name]}"
                self.problems.append(Problem(spell(here), line, message))
                continue
            if is_own:
                seen[name] = line
            self.lines[here] = line
            data[name] = self.build(value_node, here)
        return data

    def _members(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node, bool]]:
        """Yield keys, values, and whether they are the map's own: first what ``<<`` merges.

        Of several merged maps the first counts, so it comes last. PyYAML's ``flatten_mapping``
        copies them into each other, and a few hundred bytes become gigabytes.
        """
        own = []
        for name, value in node.value:
            if name.tag == _MERGE:
                maps = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for merged in reversed(maps):
                    if not isinstance(merged, yaml.MappingNode):
                        message = "'<<' merges a map, or a list of maps"
                        raise yaml.constructor.ConstructorError(
                            None, None, message, merged.start_mark
                        )
                    self._count()
                    for inner, inner_value, _ in self._members(merged):
                        yield inner, inner_value, False
            else:
                own.append((name, value, True))
        yield from own

    def _count(self) -> None:
        self._nodes += 1
        _check_nodes(self._nodes)
