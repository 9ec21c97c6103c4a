"""Requests that nobody means, by the API's own description: an answer below 500, and no hang."""

import random
from urllib.parse import quote

import pytest

from tests.api.conftest import DOCUMENT

NAMES = [
    *(
        "orders",
        "x",
        "ORDERS",
        "ör ders",
        "a/b",
        "..",
        ".",
        "%",
        "a\0b",
        "\ud83d\udcb6",
        "x" * 3000,
    ),
    *("'; DROP TABLE df_kv; --", "{name}", "${HOME}", "0", "-1", "null", "\n", "orders ", "\u202e"),
]
NUMBERS = ["0", "1", "-1", "1e9", str(2**63), str(2**64), "x", "", "1.5", "NaN"]
VALUES = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "x",
    "orders",
    [],
    {},
    [{}],
    {"id": "x"},
    "\0",
    "\ud83d",
]


def _value(chance, depth=0):
    if depth < 3 and chance.random() < 0.4:
        kind = chance.choice(["list", "dict"])
        items = [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
        if kind == "list":
            return items
        keys = ["metadata", "spec", "source", "sinks", "name", "config", "id", "type", "tables"]
        return {chance.choice(keys): item for item in items}
    return chance.choice(VALUES)


def _body(chance):
    if chance.random() < 0.5:
        return _value(chance)
    body = {**DOCUMENT, chance.choice(["metadata", "spec", "extra", "kind"]): _value(chance)}
    known = ["up_to_seq", "tables", "where", "id", "all", "first", "overtaken", "sink_id"]
    if chance.random() < 0.4:
        return {chance.choice([*known, "to", "\ud83d"]): _value(chance) for _ in range(2)}
    return {**body, chance.choice(known): _value(chance)}


def _dumped(value):
    import json

    return json.dumps(value).encode("utf-8", "surrogatepass")


def requests_of(paths, chance, each=3):
    """Yield requests that nobody means: verb, place, query and body, by the API's description."""
    for path, verbs in sorted(paths.items()):
        for verb, described in sorted(verbs.items()):
            for _ in range(each):
                place, query = path, {}
                for parameter in described.get("parameters", []):
                    name = parameter["name"]
                    if parameter["in"] == "path":
                        chosen = "orders" if chance.random() < 0.5 else chance.choice(NAMES)
                        chosen = chosen.encode("utf-8", "replace").decode()
                        place = place.replace(f"{{{name}}}", quote(chosen, safe=""))
                    else:
                        query[name] = chance.choice(NUMBERS + NAMES[:14]).encode("utf-8", "replace")
                yield verb.upper(), place, query, _dumped(_body(chance))


@pytest.mark.parametrize("seed", range(4))
def test_no_request_is_answered_with_an_error_of_the_server(client, rest, seed):
    chance = random.Random(seed)
    rest.post("/pipelines", json=DOCUMENT)
    paths = rest.get("/openapi.json").json()["paths"]
    asked = 0
    for path in ("/health", "/ready", "/readyz"):
        del paths[path]  # 503 is their way to say that a pipeline is not well.
    for verb, place, query, content in requests_of(paths, chance):
        if (verb, place) == ("DELETE", "/pipelines/orders"):
            continue
        answer = rest.request(
            verb, place, params=query, content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code < 500, (verb, place[:80], query, answer.text[:300])
        asked += 1
    assert asked > 80
