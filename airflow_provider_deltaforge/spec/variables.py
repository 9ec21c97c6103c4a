"""``${VAR}`` and ``${VAR:-default}`` in the values of a document.

Values are expanded after the YAML is read, so a variable can never change the document's shape.
``$NAME`` and ``$$`` stay as they are, and scripts (``inline``) are not touched. Outside templates
anything else behind ``${`` is refused: a slip of the pen would become the password.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_deltaforge.plugins import PROCESSORS, SINKS, PluginRegistry
from airflow_provider_deltaforge.spec.choice import find
from airflow_provider_deltaforge.spec.template import REFERENCE, VARIABLE, is_event_reference
from airflow_provider_deltaforge.spec.yaml_text import Key, Parsed, Problem

INLINE_PREFIX = "DELTAFORGE_INLINE_"
"""Begins the names of variables that stand for what a document holds itself."""

_NAME = re.compile(r"[\w.]*")
_REMEDY = "write '${NAME}' or '${NAME:-default}', or hold the text itself in a variable"


@dataclass
class Expansion:
    """Expands the values of one document, collecting what is wrong and which values it put in.

    Attributes:
        environment: The variables, or None to leave every reference as it is written.
        used: What each variable was replaced by; never shown, needed to keep secrets out of errors.
        read: What the environment held for each name that was looked up, also where it was nothing.
        verbatim: Where references were left, and the default of a value that is one reference.
    """

    parsed: Parsed
    environment: Mapping[str, str] | None
    problems: list[Problem] = field(default_factory=list)
    used: dict[str, str] = field(default_factory=dict)
    read: dict[str, str | None] = field(default_factory=dict)
    verbatim: dict[Key, str | None] = field(default_factory=dict)

    def expand(self, value: Any, key: Key = ()) -> Any:
        """Return a value with its references replaced."""
        if isinstance(value, dict):
            return {name: self.expand(item, (*key, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self.expand(item, (*key, index)) for index, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value or key[-1:] == ("inline",):
            return value
        if "${" in REFERENCE.sub(" ", value) and not self._may_hold_template(key):
            self._complain(key, f"'${{' is not closed by '}}'; {_REMEDY}")
        return REFERENCE.sub(lambda match: self._replace(match, value, key), value)

    def _replace(self, match: re.Match[str], value: str, key: Key) -> str:
        reference, inside = match.group(), match.group(1)
        is_field = is_event_reference(inside.strip())
        variable = None if is_field else VARIABLE.fullmatch(inside)
        if variable is None:
            if not self._may_hold_template(key):  # A template's own check gives a better error.
                what = "a field of an event, and this is no template" if is_field else "no variable"
                self._complain(key, f"'{_shortened(inside)}' is {what}; {_REMEDY}")
            return reference
        name, default = variable.groups()
        if _names_state(key):
            self._complain(key, f"kept state is named by this, so '{reference}' cannot stand here")
            return reference
        if self.environment is None:
            self.verbatim[key] = default if reference == value else None
            return reference
        return self._look_up(reference, name, default, key)

    def _look_up(self, reference: str, name: str, default: str | None, key: Key) -> str:
        found = self.read[name] = (self.environment or {}).get(name)
        if not found and default is not None:
            found = default  # As in a shell, it also stands in for an empty variable.
        if found is not None:
            self.used[reference] = found
            return found
        if name.startswith(INLINE_PREFIX):
            self._complain(
                key,
                "the document holds this secret itself, and this process was not started with it: "
                "start it with `deltaforge run FILE`, or write ${NAME} there",
            )
        elif not _is_processor_template(key):
            self._complain(
                key, f"the variable {name!r} is not set; set it, or write '${{{name}:-default}}'"
            )
        return reference

    def _complain(self, key: Key, message: str) -> None:
        self.problems.append(self.parsed.problem(key, message))

    def _may_hold_template(self, key: Key) -> bool:
        """Return whether fields of events, or a language with braces of its own, may stand here."""
        match key:
            case ("spec", "sharding", "key"):
                return True
            case ("spec", "processors", int(), str(name), *_):
                plugin = self._plugin(key, name, PROCESSORS)
                return plugin is None or name in plugin.template_fields
            case ("spec", "sinks", int(), "config", str(name)):
                plugin = self._plugin(key, name, SINKS)
                return plugin is None or name in (plugin.destination_field, plugin.key_field)
        return False

    def _plugin(self, key: Key, name: str, room: PluginRegistry) -> Any:
        """Return the class of the plug-in around a key; None: it is unknown, or has no such key.

        These are refused for that, with an error that says more.
        """
        entry = self.parsed.data[key[0]][key[1]][key[2]]
        known = Expansion(self.parsed, self.environment or {})
        try:
            plugin = find(room, known.expand(entry.get("type"), (*key[:3], "type")))
        except ValueError:
            return None
        fields = plugin.model_fields.items()
        return plugin if any(name in (field, info.alias) for field, info in fields) else None


def _shortened(inside: str) -> str:
    """Return what a reference names, without what follows: that may be a secret."""
    name = _NAME.match(inside.strip())
    shown = "" if name is None else name.group()
    return f"${{{shown}}}" if shown == inside.strip() else f"${{{shown}…}}"


def _is_processor_template(key: Key) -> bool:
    """A processor's own templates name columns of the row: ``${aggregate_type}``."""
    return key[:2] == ("spec", "processors") and key[3:] in {("topic",), ("key",)}


def _names_state(key: Key) -> bool:
    """Checkpoints, claims and dead letters are filed under these names."""
    if key in {("metadata", "name"), ("metadata", "tenant"), ("spec", "source", "config", "id")}:
        return True
    in_list = (*key[:2], *key[3:])  # Without the index.
    return in_list in {("spec", "sinks", "config", "id"), ("spec", "processors", "id")}
