"""From ``{type: …}`` in a document to the plug-in's own settings, errors keeping their key."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.plugins import PluginRegistry
from airflow_provider_deltaforge.spec.settings import PluginSettings


def refusal(key: tuple[str | int, ...], message: str) -> ValidationError:
    """Return an error for one key, to be raised inside a validator of the model that holds it."""
    problem = PydanticCustomError("deltaforge", "{message}", {"message": message})
    return ValidationError.from_exception_data(
        "document", [InitErrorDetails(type=problem, loc=key, input=None)]
    )


def find(room: PluginRegistry, name: Any) -> Any:
    """Return the class of a plug-in.

    Raises:
        ValueError: no plug-in has that name, it cannot be imported, or it is not whole.
    """
    if not isinstance(name, str):
        raise ValueError(f"a {room.kind} is named by text (known: {', '.join(room.names())})")  # noqa: TRY004
    try:
        return room.load(name)
    except SpecError as error:
        raise ValueError(str(error)) from error


def configure(plugin: Any, config: Any) -> Any:
    """Check the settings of one plug-in.

    Raises:
        ValidationError, ValueError: the settings are wrong; keys are relative to ``config``.
    """
    if isinstance(config, PluginSettings):
        return config
    try:
        return plugin.model_validate({} if config is None else config)
    except SpecError as error:
        raise ValueError(str(error)) from error


def choose(room: PluginRegistry, value: Any, default: str | None = None) -> Any:
    """Turn a bare name or a ``{type: name, …}`` map into a plug-in's settings; None is ``default``.

    Raises:
        ValidationError, ValueError: the name or the settings are wrong.
    """
    if isinstance(value, PluginSettings):
        return value
    if value is None:
        value = default
    if isinstance(value, str):
        return configure(find(room, value), {})
    if not isinstance(value, Mapping) or "type" not in value:
        raise ValueError(
            f"write the {room.kind} as a map with a 'type' key (known: {', '.join(room.names())})"
        )
    try:
        plugin = find(room, value["type"])
    except ValueError as error:
        raise refusal(("type",), str(error)) from error
    return configure(plugin, {key: item for key, item in value.items() if key != "type"})
