"""JSON Schemas of rows, compiled once."""

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.processors.json_objects import DepthError, parsed

_UNCHANGED = {"_unchanged": True}
_UNCHECKED = "schema (cannot be checked)"


class RowSchema:
    """Checks row images, one by one.

    Args:
        schema: the JSON Schema.
        table: the pattern of its tables, for errors.

    Raises:
        SpecError: the schema is wrong, or fastjsonschema is not installed.
    """

    def __init__(self, schema: Mapping[str, Any], table: str) -> None:
        try:
            import fastjsonschema
        except ImportError as error:
            raise SpecError(
                "a 'schema' in the processor 'contract' needs fastjsonschema: pip install "
                "'airflow-provider-deltaforge[contract]'"
            ) from error
        self._library = fastjsonschema
        self._schema = {**schema}
        self._validators: dict[frozenset[str], Callable[[Any], object]] = {}
        try:
            self._validator(frozenset())
        except Exception as error:
            raise SpecError(f"tables: the schema of {table!r} is wrong: {error}") from error

    def broken(self, image: bytes, *, wide: bool) -> str | None:
        """Return the column with the first value that breaks the schema, and how; None: none does.

        Columns whose value the log did not repeat are left out, with what is demanded of them.

        Args:
            image: a row's image.
            wide: whether it may hold integers beyond 64 bits.
        """
        try:
            row = parsed(image, wide=wide)
        except DepthError:
            return _UNCHECKED
        except ValueError:
            return "schema (no JSON)"
        unknown: frozenset[str] = frozenset()
        if isinstance(row, dict):
            unknown = frozenset(name for name, value in row.items() if value == _UNCHANGED)
            row = {name: value for name, value in row.items() if name not in unknown}
        try:
            self._validator(unknown)(row)
        except self._library.JsonSchemaValueException as error:
            return _violation(error, row)
        except (ArithmeticError, RecursionError):
            # A number that is none as a float, or values nested deeper than Python goes.
            return _UNCHECKED
        return None

    def _validator(self, unknown: frozenset[str]) -> Callable[[Any], object]:
        """Return what checks rows some of whose columns are unknown."""
        if unknown not in self._validators:
            schema = {**self._schema}
            if unknown and "required" in schema:
                schema["required"] = [name for name in schema["required"] if name not in unknown]
                if not schema["required"]:  # Draft 4 has no empty list there.
                    del schema["required"]
            self._validators[unknown] = self._library.compile(
                schema, handlers=_Closed(), use_default=False
            )
        return self._validators[unknown]


class _Closed(dict[str, Any]):
    """Handlers of references to elsewhere, for every scheme: none is read."""

    def __contains__(self, scheme: object) -> bool:
        return True

    def __getitem__(self, scheme: str) -> Any:
        raise ValueError("references to elsewhere are not read")


def _violation(error: Any, row: Any) -> str:
    """Return what is wrong, without values: they may be keys below the first level as well."""
    path = list(error.path)[1:]
    columns = [str(path[0])] if path else []
    if not path and error.rule == "required" and isinstance(row, dict):
        columns = [name for name in error.rule_definition if name not in row]
    named = ", ".join(repr(name) for name in columns)
    return f"column {named}: schema ({error.rule})" if named else f"schema ({error.rule})"
