"""What flattening means, one text at a time, in plain Python."""

import json

from airflow_provider_deltaforge.processors.flatten.settings import Flatten


class Number(str):
    """A number as it stands in the text."""

    __slots__ = ()


class Members(list):
    """An object, as its members."""


class CollisionError(Exception):
    """Two paths gave the same key."""


def parsed(text):
    return json.loads(text, object_pairs_hook=Members, parse_int=Number, parse_float=Number)


def is_one_value(value):
    """Whether an object is how sources write bytes, geometry, or a value that was not sent."""
    names = [name for name, _ in value]
    if names == ["srid", "_base64"]:
        return isinstance(value[0][1], Number) and is_text(value[1][1])
    return (names == ["_base64"] and is_text(value[0][1])) or value == [("_unchanged", True)]


def is_text(value):
    return isinstance(value, str) and not isinstance(value, Number)


def flat(value, settings: Flatten):
    """Return the members of a flat object, in order; anything else as it is."""
    if not isinstance(value, Members):
        return value
    pairs = list(_walk(value, "", 0, settings))
    if pairs == value:
        return value  # Nothing to do: left as it stands, with the keys it repeats.
    found = {}
    for key, inner in pairs:
        if key in found and settings.on_collision == "error":
            raise CollisionError(key)
        if key not in found or settings.on_collision == "last":
            found[key] = inner
    return Members(found.items())


def _walk(members, prefix, depth, settings):
    for name, value in members:
        key = prefix + str(name)
        is_object, is_array = isinstance(value, Members), type(value) is list
        below = settings.max_depth is None or depth < settings.max_depth
        if (is_object or is_array) and not value:
            policy = settings.empty_object if is_object else settings.empty_list
            if policy != "drop":
                yield key, value if policy == "preserve" else None
        elif below and is_object and not is_one_value(value):
            yield from _walk(value, key + settings.separator, depth + 1, settings)
        elif below and is_array and settings.lists == "index":
            yield from _walk(enumerate(value), key + settings.separator, depth + 1, settings)
        else:
            yield key, value
