"""The base of everything a document names: a frozen description, checked key by key."""

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler


class Settings(BaseModel):
    """Frozen, picklable, refuses unknown keys, and never prints a refused value.

    The text below a field describes it in schemas and references. It is read from the source when
    one of these is written, and not, as pydantic offers, whenever the class is imported: that is a
    third of the time which Airflow takes to import the operators, for each DAG file.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
        populate_by_name=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> Any:
        """Return the schema, with what stands below the fields as their descriptions."""
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_descriptions(cls).items():
            field = properties.get(cls.model_fields[name].alias or name)
            if field is not None:
                field.setdefault("description", text)
        return schema


class PluginSettings(Settings):
    """The settings of one plug-in in a document. Its ``open()`` returns the worker."""

    def unbuilt(self) -> list[str]:
        """Name what these settings ask for that this release does not do.

        A pipeline that asks for any of it is refused at start, with these names.
        """
        return []


def field_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return what describes each field, by its name in Python: where the field was last declared.

    ``Field(description=...)`` goes before the text below the field.
    """
    texts: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, Settings):
            texts.update(_texts_below(kind))
    fields = model.model_fields.items()
    return {name: text for name, info in fields if (text := info.description or texts.get(name))}


@cache
def _texts_below(model: type[Settings]) -> dict[str, str]:
    """Return the text below each field that the class declares; empty where there is none."""
    if not model.__annotations__:
        return {}
    tree = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(tree, ast.ClassDef)  # noqa: S101 - that is what the source of a class is
    texts = {}
    for statement, following in pairwise([*tree.body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            texts[statement.target.id] = _text(following)
    return texts


def _text(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
    return ""
