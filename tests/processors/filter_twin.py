"""What a filter's conditions mean, one event at a time."""

import json
import re
from decimal import Decimal

MISSING = object()
MARK = {"_unchanged": True}


def value_at(text, path):
    value = MISSING
    if text is not None:
        value = json.loads(text, parse_int=Decimal, parse_float=Decimal)
        for name in path.split("."):
            value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
    return value


def same(left, right):
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def holds(op, value, path, before, after):
    constant = json.loads(json.dumps(value), parse_int=Decimal, parse_float=Decimal)
    found = value_at(after, path)
    if op == "changed":
        if before is None or after is None:
            return True
        return found != MARK and not same(value_at(before, path), found)
    if op in {"exists", "not_exists"}:
        return (found is not MISSING and found is not None) == (op == "exists")
    if found is MISSING or found == MARK:
        return op == "not_in"
    return PRESENT[op](found, constant)


def ordered(compare):
    def asked(found, constant):
        kinds = {type(found), type(constant)}
        return len(kinds) == 1 and kinds <= {Decimal, str} and compare(found, constant)

    return asked


def contains(found, constant):
    if isinstance(found, str):
        return isinstance(constant, str) and constant in found
    return isinstance(found, list) and any(same(one, constant) for one in found)


PRESENT = {
    "eq": same,
    "ne": lambda found, constant: not same(found, constant),
    "gt": ordered(lambda a, b: a > b),
    "gte": ordered(lambda a, b: a >= b),
    "lt": ordered(lambda a, b: a < b),
    "lte": ordered(lambda a, b: a <= b),
    "in": lambda found, constant: any(same(found, one) for one in constant),
    "not_in": lambda found, constant: not any(same(found, one) for one in constant),
    "contains": contains,
    "regex": lambda found, constant: isinstance(found, str) and bool(re.search(constant, found)),
}
