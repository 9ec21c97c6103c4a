"""Masked values are nowhere, every place of them is found, and the rest stays as it was."""

import hmac
import json
import pickle
import random
import re
import string
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest
from pydantic import ValidationError

from airflow_provider_deltaforge.errors import FatalError, SpecError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.processors.mask.actions import Tokens
from airflow_provider_deltaforge.processors.mask.settings import Mask
from airflow_provider_deltaforge.processors.outbox.settings import Outbox
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.processors.mask_twin import siphash, token

SECRET = "0123456789abcdef0123456789abcdef"


def mask(*rules, secret=SECRET):
    """Return a worker of rules given as (columns, action, settings)."""
    told = [
        {"columns": [columns], "action": action, **more}
        for columns, action, more in ((*rule, {})[:3] for rule in rules)
    ]
    return pickle.loads(pickle.dumps(Mask(rules=told, secret=secret))).open()


def image(value):
    return None if value is None else json.dumps(value).encode()


def after(worker, value, **more):
    """Return what becomes of one row image."""
    done = worker.process(change_rows([change(after=image(value), **more)]))
    return json.loads(done.rows["after"][0].as_py())


def test_tables_fold_as_columns_do_and_may_hold_dots():
    for table in ("ÄRZTE.alt", "ärzte.ALT"):
        worker = mask((r"shop.Ärzte\.alt.name", "redact"))
        assert after(worker, {"NAME": 1}, table=table) == {"NAME": "***"}
        assert after(worker, {"NAME": 1}, table="ärzte") == {"NAME": 1}


def test_both_images_and_the_key_are_masked_and_nothing_else_changes():
    worker = mask(("shop.users.email", "hash"), ("shop.users.name", "redact"))
    row = {"email": "a@b.c", "name": "Ann", "n": 1.50}
    event = change(
        op="u",
        table="users",
        before=image({**row, "n": 1}),
        after=b'{"email":"a@b.c", "name" : "Ann","n":1.50}',
        key=b'{"email":"a@b.c"}',
    )
    other = change(before=image(row), after=image(row), key=image(row))
    rows = change_rows([change(), event, other, change()]).slice(1, 2)
    done = worker.process(rows)
    masked, same = done.rows.to_pylist()

    hidden = hmac.digest(_hash_key(), b"a@b.c", "sha256").hex()
    assert json.loads(masked["before"]) == {"email": hidden, "name": "***", "n": 1}
    assert masked["after"] == f'{{"email":"{hidden}", "name" : "***","n":1.50}}'.encode()
    assert json.loads(masked["key"]) == {"email": hidden}
    assert same == rows.to_pylist()[1]
    untouched = set(masked) - {"before", "after", "key"}
    assert {name: masked[name] for name in untouched} == {
        name: rows.to_pylist()[0][name] for name in untouched
    }
    assert done.counts == {"masked:shop.users.email": 2, "masked:shop.users.name": 2}


def _hash_key():
    return hmac.digest(SECRET.encode(), b"deltaforge mask: hash", "sha256")


def test_a_batch_of_other_tables_is_not_copied():
    rows = change_rows([change(), change(op="d", after=None)])

    assert mask(("shop.users.*", "redact")).process(rows).rows is rows


@pytest.mark.parametrize(
    ("pattern", "place", "fits"),
    [
        ("shop.users.*", {}, True),
        ("*.*.e*il", {}, True),
        ("SHOP.Users.EMAIL", {}, True),
        ("shop.user.email", {}, False),
        ("shop.users.mail", {}, False),
        ("public.users.email", {"schema": "public"}, True),
        ("shop.users.email", {"schema": "public"}, True),
        ("other.users.email", {"schema": "public"}, False),
        ("shop.users.email", {"schema": "__outbox"}, True),
        ("*.us%rs.email", {}, False),
    ],
)
def test_columns_are_named_by_patterns(pattern, place, fits):
    worker = mask((pattern, "redact"))

    assert after(worker, {"Email": "x"}, table="users", **place) == {
        "Email": "***" if fits else "x"
    }


@pytest.mark.parametrize(
    ("pattern", "value", "masked"),
    [
        ("c.e", {"c": {"e": 1, "n": 2}, "e": 3}, {"c": {"e": 0, "n": 2}, "e": 3}),
        ("c.*.n", {"c": {"a": {"n": 1}, "b": {"n": [1]}}}, {"c": {"a": {"n": 0}, "b": {"n": 0}}}),
        ("c.e", {"c": [{"e": 1}, [{"e": 2}], 5]}, {"c": [{"e": 0}, [{"e": 0}], 5]}),
        ("c", {"c": {"email": 1}}, {"c": 0}),
        ("c.email", {"c": "email"}, {"c": "email"}),
        ('q"\\', {'q"\\': 1}, {'q"\\': 0}),
        ("é", {"é": 1, "É": 1, "e": 1}, {"é": 0, "É": 0, "e": 1}),
        ("ΠΌΛΗ", {"πόλη": 1, "Πόλη": 1, "πολη": 1}, {"πόλη": 0, "Πόλη": 0, "πολη": 1}),
        ("адрес*", {"АДРЕСА": 1, "Адрес": 1, "адре": 1}, {"АДРЕСА": 0, "Адрес": 0, "адре": 1}),
        ("Straße", {"STRAßE": 1, "strasse": 1}, {"STRAßE": 0, "strasse": 1}),
        ("\U00010400", {"\U00010428": 1, "\U0001f600": 1}, {"\U00010428": 0, "\U0001f600": 1}),
        ("*\U0001f600", {"a\U0001f600": 1, "a\U0001f601": 1}, {"a\U0001f600": 0, "a\U0001f601": 1}),
        ("ⱥ", {"Ⱥ": 1}, {"Ⱥ": 0}),  # Two bytes and three.
        (r"a\.b", {"a.b": 1, "A.B": 1, "a": {"b": 1}}, {"a.b": 0, "A.B": 0, "a": {"b": 1}}),
        ("a.b", {"a.b": 1, "a": {"b": 1}}, {"a.b": 1, "a": {"b": 0}}),
        (r"c.x\.y\*", {"c": {"x.y*": 1, "x.yz": 1}}, {"c": {"x.y*": 0, "x.yz": 1}}),
        (r"a\\.b", {"a\\": {"b": 1}, "a.b": 1}, {"a\\": {"b": 0}, "a.b": 1}),
        (r"a\b", {"a\\b": 1, "ab": 1}, {"a\\b": 0, "ab": 1}),
        ("a*b*c", {"abc": 1, "aXbYbc": 1, "ab": 1}, {"abc": 0, "aXbYbc": 0, "ab": 1}),
    ],
)  # fmt: skip
def test_paths_lead_into_json(pattern, value, masked):
    worker = mask((f"*.*.{pattern}", "redact"))
    wanted = json.loads(json.dumps(masked).replace(" 0", ' "***"'))

    assert after(worker, value) == wanted


def test_every_occurrence_of_a_repeated_or_escaped_key_counts():
    worker = mask(("*.*.email", "redact"))
    text = b'{"email":"one","\\u0065mail":"two" , "email" : {"x":["three"]}}'
    done = worker.process(change_rows([change(after=text)]))

    assert done.rows["after"][0].as_py() == b'{"email":"***","\\u0065mail":"***" , "email" : "***"}'


def test_json_in_text_is_masked_as_json_is_and_other_text_stays():
    inner = json.dumps([{"e": "p1", "t": json.dumps({"e": "p2"})}, {"e": None, "n": 1.50}])
    hidden = json.dumps([{"e": "***", "t": json.dumps({"e": "***"})}, {"e": None, "n": 1.50}])
    worker = mask(("*.*.c.e", "redact"), ("*.*.c.t.e", "redact"), ("*.*.d.e", "hash"))
    kept = ["[draft] e", '{"e":"cut', '\n{"n": 1}', 7]
    rows = [
        change(after=image({"a": 1, "c": inner, "n": inner})),
        change(
            after=image({"c": [' \n{"e":"p3"}'], "d": '{"e":"p4"}'}), key=image({"d": '{"e":1}'})
        ),
        change(after=image({"c": kept, "d": kept})),
    ]
    done = worker.process(change_rows([change(), *rows, change()]).slice(1, 3))
    after = done.rows["after"].to_pylist()

    own = [json.loads(one) for one in after]
    assert {**own[0], "c": json.loads(own[0]["c"])} == {
        "a": 1,
        "c": json.loads(hidden),
        "n": inner,
    }
    hashed = [hmac.digest(_hash_key(), text, "sha256").hex() for text in (b"p4", b"1")]
    assert own[1] == {"c": [' \n{"e":"***"}'], "d": f'{{"e":"{hashed[0]}"}}'}
    assert json.loads(done.rows["key"][1].as_py()) == {"d": f'{{"e":"{hashed[1]}"}}'}
    assert after[2] == rows[2]["after"]
    assert done.counts == {"masked:*.*.c.e": 2, "masked:*.*.c.t.e": 1, "masked:*.*.d.e": 1}


def test_objects_in_an_array_that_is_the_whole_text_are_masked():
    done = mask(("*.*.e", "redact")).process(change_rows([change(after=b'[{"e":1},[{"e":2}],3]')]))

    assert done.rows["after"][0].as_py() == b'[{"e":"***"},[{"e":"***"}],3]'


@pytest.mark.parametrize("times", [1, 2, 5])
def test_json_in_a_text_is_masked_however_often_it_is_encoded(times):
    worker = mask(("*.*.e", "redact"), ("*.*.c.e", "redact"))

    def text(value, count=times):
        return value if count == 0 else json.dumps(text(value, count - 1))

    secret, hidden = ('{"e":"a@x"}', '{"e":"***"}')
    columns = [
        [text(secret).encode(), text(hidden).encode()],
        [image({"c": text(secret)}), image({"c": text(hidden)})],
        [image([text(secret), 1]), image([text(hidden), 1])],
        [text("no JSON: a@x").encode()] * 2,
        [text('["unfinished').encode()] * 2,
        [b"1"] * 2,
    ]
    done = worker.process(change_rows([change(after=before) for before, _ in columns]))
    again = done.rows["after"].to_pylist()

    def decoded(value):
        found = json.loads(value)
        return {"c": found["c"]} if isinstance(found, dict) else found

    assert [decoded(made) for made in again] == [decoded(wanted) for _, wanted in columns]
    assert done.counts == {"masked:*.*.e": 2, "masked:*.*.c.e": 1}
    assert not done.rejections


def test_text_at_the_top_that_is_too_deep_is_refused():
    deep = json.dumps("[" * 1100 + "]" * 1100).encode()
    rows = change_rows([change(after=deep), change(after=b'"[1]"')])
    done = mask(("*.*.e", "redact")).process(rows)

    assert [found.event_row for found in done.rejections] == [0]
    assert done.rows["after"].to_pylist() == [b'"[1]"']


def test_json_of_mariadb_in_an_outbox_is_masked_behind_it():
    payload = json.dumps({"email": "a@x"})
    row = image({"id": 1, "payload": payload, "aggregate_id": "7"})
    rows = change_rows([change(after=row, schema="__outbox", table="outbox")])
    routed = Outbox().open().process(rows).rows

    masked = mask(("shop.outbox.email", "redact")).process(routed).rows["after"][0].as_py()

    assert json.loads(json.loads(masked)) == {"email": "***"}


def test_a_path_into_bytes_is_named_before_the_pipeline_starts():
    columns = [Column("c", "blob", "blob"), Column("j", "json", "json")]
    table = TableSchema("shop", None, "orders", tuple(columns))
    named = ["shop.orders.c", "shop.orders.c.email", "shop.orders.j.email", "*.*.*.email"]
    settings = Mask(rules=[{"columns": named, "action": "redact"}])

    assert settings.unmatched([table]) == [
        "shop.orders.c.email (bytes are not looked into: name their column)"
    ]


def test_the_first_rule_and_the_shorter_path_win():
    worker = mask(
        ("*.*.c.email", "redact", {"replacement": "deep"}),
        ("*.*.c", "truncate", {"length": 3}),
        ("*.*.*", "redact", {"replacement": None}),
    )

    assert after(worker, {"c": {"email": 1}, "d": "x"}) == {"c": '{"e', "d": None}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("añ😀cd", "añ😀"),
        ("ab", "ab"),
        (12345, "123"),
        (True, "tru"),
        (None, None),
        ('"\\x', '"\\x'),
    ],
)
def test_truncate_leaves_whole_characters(value, shown):
    assert after(mask(("*.*.v", "truncate", {"length": 3})), {"v": value}) == {"v": shown}


def test_a_hash_is_keyed_and_the_same_for_numbers_and_their_text():
    one, other = mask(("*.*.v", "hash")), mask(("*.*.v", "hash"), secret="another secret, longer")
    number, text = after(one, {"v": 42})["v"], after(one, {"v": "42"}, table="users")["v"]

    assert number == text == hmac.digest(_hash_key(), b"42", "sha256").hex()
    assert after(other, {"v": 42})["v"] != number
    assert after(one, {"v": None}) == {"v": None}
    assert after(one, {"v": {"_unchanged": True}})["v"] != {"_unchanged": True}
    done = one.process(change_rows([change(after=b'{"v":{"_unchanged":true}}')]))
    assert done.rows["after"][0].as_py() == b'{"v":{"_unchanged":true}}'


@pytest.mark.parametrize(
    ("value", "looks"),
    [
        ("Ann.Lee@example.com", r'"[A-Z][a-z]{2}\.[A-Z][a-z]{2}@[a-z]{7}\.[a-z]{3}"'),
        ("+49 170 1234567", r'"\+\d{2} \d{3} \d{7}"'),
        ("0049", r'"0\d{3}"'),
        (4711, r"[1-9]\d{3}"),
        (-12.5, r"-[1-9]\d\.\d"),
        (7, r"\d"),
        ("x" * 300, r'"[0-9a-f]{32}"'),
        ("Zoë", r'"[0-9a-f]{32}"'),
        ("", r'"[0-9a-f]{32}"'),
        (True, r'"[0-9a-f]{32}"'),
        ({"a": 1}, r'"[0-9a-f]{32}"'),
    ],
)
def test_a_token_looks_like_its_value_and_joins(value, looks):
    worker = mask(("*.*.v", "tokenise"), ("*.*.ref", "tokenise"))
    row = after(worker, {"v": value, "ref": value})

    assert re.fullmatch(looks, json.dumps(row["v"]))
    assert row["v"] == row["ref"] == after(mask(("*.*.v", "tokenise")), {"v": value})["v"]
    other = after(mask(("*.*.v", "tokenise"), secret="another secret, longer"), {"v": value})
    assert other["v"] != row["v"] or len(str(value)) < 6  # Few tokens are often the same.


def tokens(values, key=bytes(range(32))):
    """Return the tokens of values, all as JSON text."""
    made = Tokens(key)(pa.array([value.encode() for value in values], pa.binary()))
    return [one.decode() for one in made.to_pylist()]


def test_tokens_never_collide():
    numbers = [str(n) for n in range(1000)]
    texts = [f'"{text}"' for text in ([f"{n:03}" for n in range(100)], numbers) for text in text]
    made = tokens(texts)

    assert sorted(made) == sorted(texts)
    assert tokens(numbers) == [text.strip('"') for text in made[100:]]
    assert sum(one == text for one, text in zip(made, texts, strict=True)) < 60
    words = [f'"{a}-{b}{c}"' for a in "ABYZ" for b in string.ascii_lowercase for c in string.digits]
    assert len(set(tokens(words))) == len(words)


def test_a_token_reveals_nothing_of_its_neighbours():
    made = tokens([str(n) for n in range(100_000, 120_000)])

    for place in range(6):
        often = Counter(one[place] for one in made)
        choice = 10 if place else 9
        assert len(often) == choice
        assert all(0.9 < count * choice / len(made) < 1.1 for count in often.values())
    steps = Counter(int(b) - int(a) for a, b in pairwise(made))
    assert steps.most_common(1)[0][1] < 5


def test_tokens_are_made_as_described():
    assert siphash(bytes(range(16)), b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash(bytes(range(16)), bytes([0])).hex() == "da87c1d86b99af44347659119b22fc45"
    rng = random.Random(7)
    letters = string.printable + "\x00\x7f"
    lengths = [*range(12), 20, 21, 22, 40, 41, 255, 256, 257]
    texts = ["".join(rng.choices(letters, k=length)) for length in lengths for _ in range(8)]
    words = ["a" * 256, "0" * 256, "007", "0", "z", "Zoë", "x😀", "-.-", '"\\/']
    values = [json.dumps(text, ensure_ascii=rng.random() < 0.5) for text in texts + words]
    values += ["0", "-0", "10", "-12.50", "0.05", "5e3", "1E+5", "9" * 256, "9" * 257, "1.0e-7"]
    values += ["true", "false", '{"a": 1}', "[1]", '"\\u0041\\u000a"', '"A\\n"']
    key = rng.randbytes(32)
    made, wanted = tokens(values, key), [token(key, value) for value in values]

    assert [json.loads(one) for one in made] == [json.loads(one) for one in wanted]
    assert [one[0] == '"' for one in made] == [one[0] == '"' for one in wanted]
    assert made == [one for value in values for one in tokens([value], key)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Ann.Lee@example.com", "Lke.Lnd@mmqqruj.hre"),
        (4711, 5797),
        ("+49 170 1234567", "+57 487 0687767"),
        ("Zoë", "2ca443727932a3929a53ce2e4dbc0cc6"),
    ],
)
def test_tokens_stay_what_they_are_in_every_version(value, shown):
    """Stored tokens are joined with new ones: who changes these breaks everybody's tables."""
    assert after(mask(("*.*.v", "tokenise")), {"v": value}) == {"v": shown}


def test_keys_stay_different_where_images_do_not():
    event = change(after=b'{"email":"ann@x"}', key=b'{"email":"ann@x"}')
    (done,) = mask(("*.*.email", "redact")).process(change_rows([event])).rows.to_pylist()

    assert done["after"] == b'{"email":"***"}'
    hidden = hmac.digest(_hash_key(), b"ann@x", "sha256").hex()
    assert done["key"] == f'{{"email":"{hidden}"}}'.encode()
    with pytest.raises(FatalError, match=r"primary key of shop\.orders") as caught:
        mask(("*.*.email", "redact"), secret=None).process(change_rows([event]))
    assert "ann" not in str(caught.value)


def test_what_is_not_json_is_refused_and_never_passes():
    good = change(after=b'{"email":"a"}')
    bad = change(after=b'{"email":"planted",}')
    inside = b'{"v":{"v":{"email":"planted"}}}'
    deep = change(after=b'{"v":' + b"[" * 2000 + inside + b"]" * 2000 + b"}")
    done = mask(("*.*.email", "redact"), ("*.*.v.v.v.email", "redact")).process(
        change_rows([bad, good, deep, change(after=b"[1]")])
    )

    assert [(one.event_row, one.kind) for one in done.rejections] == [
        (0, "processor"),
        (2, "processor"),
    ]
    assert done.origins.to_pylist() == [1, 3]
    assert "planted" not in str(done)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"rules": []}, "rules"),
        ({"rules": [{"columns": ["users.email"], "action": "redact"}]}, "any database"),
        ({"rules": [{"columns": ["a..b"], "action": "redact"}]}, "no pattern"),
        ({"rules": [{"columns": ["a.b.c"], "action": "hash"}]}, "MASK_SECRET"),
        ({"rules": [{"columns": ["a.b.c"], "action": "truncate"}]}, "length"),
        ({"rules": [{"columns": ["a.b.c"], "action": "redact", "length": 2}]}, "length"),
        (
            {
                "rules": [{"columns": ["a.b.c"], "action": "hash", "replacement": "x"}],
                "secret": "s",
            },
            "replacement",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, told):
    with pytest.raises(ValidationError, match=told):
        Mask(**settings)


def test_a_short_secret_is_refused_and_none_is_shown():
    with pytest.raises(SpecError, match="openssl"):
        mask(("a.b.c", "hash"), secret="short")
    assert "0123456789" not in repr(
        Mask(rules=[{"columns": ["a.b.c"], "action": "hash"}], secret=SECRET)
    )


def planted(rng, depth=0):
    """Return a value with secrets under the keys that a rule names, anywhere in it."""
    if depth > 3 or rng.random() < 0.4:
        return rng.choice(["plain", 5, None, 'q\\"x', True, -1.5])
    if rng.random() < 0.3:
        return [planted(rng, depth + 1) for _ in range(rng.randrange(4))]
    names = rng.sample(["secret", "a", "b", 'q"', "é"], rng.randrange(4))
    return {name: planted(rng, depth + 1) for name in names}


def expected(value, path):
    """Mask straightforwardly: arrays are transparent, null stays null."""
    if isinstance(value, list):
        return [expected(one, path) for one in value]
    if not isinstance(value, dict):
        return value
    done = {}
    for name, one in value.items():
        if path[0] not in ("*", name):
            done[name] = one
        elif len(path) > 1:
            done[name] = expected(one, path[1:])
        else:
            done[name] = one if one is None else "***"
    return done


@pytest.mark.parametrize("path", ["secret", "a.secret", "*.secret", "a.*", "*.*.b", 'é.q"'])
def test_any_values_are_masked_where_the_rule_says(path):
    rng = random.Random(path)
    values = [{"a": planted(rng), "secret": planted(rng), "é": planted(rng)} for _ in range(300)]
    rows = change_rows([change(after=image(value)) for value in values])
    done = mask((f"*.*.{path}", "redact")).process(rows)

    found = [json.loads(text) for text in done.rows["after"].to_pylist()]
    assert found == [expected(value, path.split(".")) for value in values]
