import pickle

import pytest

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.template import Path, Template, is_event_reference


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param("orders", ("orders",), id="a static name is one literal"),
        pytest.param("", (), id="nothing has no parts"),
        pytest.param("${op}", (Path(("op",)),), id="one segment"),
        pytest.param(
            "cdc.${source.db}.${source.table}",
            ("cdc.", Path(("source", "db")), ".", Path(("source", "table"))),
            id="literals between paths",
        ),
        pytest.param(
            "${after.a.b}${op}-x",
            (Path(("after", "a", "b")), Path(("op",)), "-x"),
            id="neighbouring paths keep their order",
        ),
        pytest.param("a$b $$ $", ("a$b $$ $",), id="a dollar without a brace is itself"),
        pytest.param("a}b{c", ("a}b{c",), id="braces without a dollar are themselves"),
        pytest.param("${ source.table }", (Path(("source", "table")),), id="blanks are cut"),
    ],
)
def test_a_template_is_taken_apart(text, parts):
    assert Template.parse(text).parts == parts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a.${source.table", "'${' is not closed by '}'"),
        ("${a${b}}", "'${' is not closed by '}'"),
        ("a.${}", "'${}' names no field"),
        ("a.${  }", "'${}' names no field"),
        ("${a..b}", "'${a..b}' has an empty segment"),
        ("${.a}", "'${.a}' has an empty segment"),
        ("${a.b.c.d}", "'${a.b.c.d}' has 4 segments, at most 3 are allowed"),
    ],
)
def test_a_broken_template_is_refused_with_its_reason(text, reason):
    with pytest.raises(SpecError) as caught:
        Template.parse(text)

    assert f"template {text!r}: {reason}; write for example '${{source.table}}'" == str(
        caught.value
    )


def test_a_template_travels_to_an_executor():
    template = Template.parse("${source.db}.x")

    assert template == pickle.loads(pickle.dumps(template))


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("source.table", True),
        ("op", True),
        ("tenant_id", True),
        ("MYSQL_DSN", False),
        ("HOST:-db.example.com", False),
        ("anything.dotted", True),
    ],
)
def test_variables_and_event_fields_are_distinguished(inside, expected):
    assert expected == is_event_reference(inside)
