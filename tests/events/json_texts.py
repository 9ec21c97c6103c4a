"""Strategies that make JSON texts the way databases hold them: spaced, escaped, keys repeated."""

import json
import random

from hypothesis import strategies as st

KEYS = ("a", "b", "id", "", "ä", "€", "😀", 'q"q', "back\\slash", "a.b", "line\nbreak", "\x01")
_SPACES = ("", "", "", "", " ", "\n", "\t ", " \r\n")
_NUMBERS = ("0", "-0", "1E3", "1e-2", "0.10", "-0.0e+00", "12345678901234567890", "-1.5", "7")


class Members(tuple):
    """An object, as its members."""

    __slots__ = ()


class Number(str):
    """A number as it is written."""

    __slots__ = ()


_numbers = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(_NUMBERS),
).map(Number)
_characters = st.one_of(st.sampled_from('"\\/\b\n x€😀é'), st.characters(exclude_categories=["Cs"]))
_scalars = st.one_of(
    _numbers, st.text(_characters, max_size=12), st.sampled_from([None, True, False])
)


def _containers(values):
    members = st.lists(st.tuples(st.sampled_from(KEYS), values), max_size=4).map(Members)
    return st.one_of(members, st.lists(values, max_size=3))


_values = st.recursive(_scalars, _containers, max_leaves=8)
_objects = st.lists(st.tuples(st.sampled_from(KEYS), _values), max_size=5).map(Members)


def _written(value, seed):
    """Return the text of a value: white space and escapes come and go by chance."""
    chance = random.Random(seed)
    return (_space(chance) + _text(value, chance) + _space(chance)).encode()


def _space(chance):
    return chance.choice(_SPACES)


def _text(value, chance):
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return '"' + "".join(_character(one, chance) for one in value) + '"'
    if isinstance(value, Members):
        members = (
            f"{_space(chance)}{_text(key, chance)}{_space(chance)}:"
            f"{_space(chance)}{_text(inner, chance)}{_space(chance)}"
            for key, inner in value
        )
        return "{" + (",".join(members) or _space(chance)) + "}"
    if isinstance(value, list):
        items = (f"{_space(chance)}{_text(one, chance)}{_space(chance)}" for one in value)
        return "[" + (",".join(items) or _space(chance)) + "]"
    return json.dumps(value)


def _character(character, chance):
    way = chance.randrange(6)
    if way == 0 and ord(character) < 0x10000:
        return f"\\u{ord(character):04X}"
    return json.dumps(character, ensure_ascii=way == 1)[1:-1]


_seeds = st.integers(0, 2**32)
objects = st.builds(_written, _objects, _seeds)
texts = st.one_of(objects, objects, st.builds(_written, _values, _seeds))
columns = st.lists(st.one_of(st.none(), texts, texts), min_size=1, max_size=4)
paths = st.lists(st.sampled_from(KEYS), max_size=3)
