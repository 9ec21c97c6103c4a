"""The base of everything a document names: a frozen description, checked key by key."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen, picklable, refuses unknown keys, and never prints a refused value."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        validate_default=True,
        populate_by_name=True,
    )


class PluginSettings(Settings):
    """The settings of one plug-in in a document. Its ``open()`` returns the worker."""

    def unbuilt(self) -> list[str]:
        """Name what these settings ask for that this release does not do.

        A pipeline that asks for any of it is refused at start, with these names.
        """
        return []
