"""Structures have one number each: held against a walk over the parsed texts."""

import json
import random

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.sensing.structures import ELEMENTS_MAX, StructureNumbers

KEYS = ("a", "b", "a longer key than eight bytes", "é", "x\ny", "_base64")
SCALARS = (None, True, 1, -5, 10**25, 1.5, "x", 'é"\\')


def numbers(depth, *texts, **more):
    column = pa.array([t if isinstance(t, bytes) else t.encode() for t in texts], pa.binary())
    return StructureNumbers(depth, **more).of(column).tolist()


def structure(value, depth, level=0):
    """Return what must be the same for two texts to have one number."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("_base64"), str):
        return "bytes"
    if isinstance(value, list | dict) and level > depth:
        return type(value).__name__
    if isinstance(value, list):
        return "list", frozenset(structure(each, depth, level + 1) for each in value)
    if isinstance(value, dict):
        fields = {key: structure(each, depth, level + 1) for key, each in value.items()}
        return "dict", frozenset(fields.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if len(str(value)) <= 18 else "long"
    return type(value).__name__


def made(chance, depth):
    what = chance.random()
    if depth == 0 or what < 0.45:
        return chance.choice(SCALARS)
    if what < 0.6:
        return [made(chance, depth - 1) for _ in range(chance.randrange(4))]
    if what < 0.63:
        return {"_base64": "aa"}
    return {chance.choice(KEYS): made(chance, depth - 1) for _ in range(chance.randrange(4))}


@pytest.mark.parametrize("depth", [0, 1, 3, 10])
def test_texts_have_one_number_if_and_only_if_they_have_one_structure(depth):
    chance = random.Random(depth)
    values = [made(chance, 5) for _ in range(3000)]
    spaces = [(",", ":"), (" , ", " : ")]
    texts = [
        json.dumps(value, ensure_ascii=False, separators=chance.choice(spaces)) for value in values
    ]

    found = numbers(depth, *texts)

    assert 0 not in found
    pairs = {(structure(value, depth), number) for value, number in zip(values, found, strict=True)}
    assert len(pairs) == len({kind for kind, _ in pairs}) == len({number for _, number in pairs})


def test_the_keys_of_a_map_do_not_count_but_for_its_fields():
    maps = {("s",): ["k"]}
    two, three, no_field, other, wrong = numbers(
        9,
        '{"s":{"k":1,"x":{"q":1}}}',
        '{"s":{"y":{"q":2},"k":1,"z":{"q":3}}}',
        '{"s":{"y":{"q":2}}}',
        '{"s":{"k":1,"y":{"r":2}}}',
        '{"s":{"k":"1","y":{"q":2}}}',
        maps=maps,
    )

    assert two == three
    assert len({two, no_field, other, wrong}) == 4


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a":}', "[1,]", '{"a":1}x', "nul", '"a', '{"a" 1}', "[1 2]", '{"a":1,}', "[" * 999],
)
def test_what_is_not_json_has_no_number(text):
    assert numbers(10, text) == [0]


def test_only_the_first_elements_of_an_array_are_looked_at():
    many = ["1"] * ELEMENTS_MAX

    first, late, none = numbers(
        3, f"[{','.join([*many[1:], '{}'])}]", f"[{','.join([*many, '{}'])}]", "[1]"
    )

    assert late == none != first
