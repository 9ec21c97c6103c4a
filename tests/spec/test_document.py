import re

import pytest
import yaml

from airflow_provider_deltaforge.encodings.contract import Bodies, EncoderRequest
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.plugins import ENCODINGS, ENVELOPES, PROCESSORS, SINKS, SOURCES
from airflow_provider_deltaforge.spec.inline_secrets import withhold
from airflow_provider_deltaforge.spec.load import check, load
from airflow_provider_deltaforge.spec.settings import PluginSettings
from tests.spec.documents import document

THREE_SINKS = """\
    - {type: redis, config: {id: b, uri: redis://h, stream: s}}
    - {type: redis, config: {id: c, uri: redis://h, stream: s}}
"""


def messages(text):
    return [str(problem) for problem in check(text, {})]


def unbuilt(text):
    return load(text, {}).unbuilt()


class TestCommitPolicy:
    def test_a_quorum_is_a_number_of_sinks_there_are(self):
        policy = load(
            document(spec="commit_policy: {mode: quorum, quorum: 1}"), {}
        ).spec.commit_policy

        assert (policy.mode, policy.quorum) == ("quorum", 1)

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            (
                "{mode: quorum}",
                "line 18: spec.commit_policy.quorum: mode 'quorum' needs the number of sinks that "
                "are enough",
            ),
            (
                "{mode: all, quorum: 1}",
                "line 18: spec.commit_policy.quorum: has a meaning with mode 'quorum' only, not "
                "'all'",
            ),
            (
                "{mode: quorum, quorum: 2}",
                "line 18: spec.commit_policy.quorum: 2 sinks cannot be reached with 1",
            ),
            (
                "{mode: quorum, quorum: 0}",
                "line 18: spec.commit_policy.quorum: Input should be greater than 0",
            ),
            (
                "{mode: periodic}",
                "line 18: spec.commit_policy.mode: Input should be 'required', 'all' or 'quorum'",
            ),
        ],
    )
    def test_a_policy_without_meaning_is_refused(self, written, message):
        text = document(spec=f"commit_policy: {written}")

        assert messages(text) == [message]


@pytest.mark.parametrize("name", ["", "-a", ".a", "a/b", "a b", "ä", "a" * 101, "a\n"])
def test_a_name_that_no_topic_or_file_can_have_is_refused(name):
    text = document().replace("name: orders", f'name: "{name}"'.replace("\n", "\\n"))

    assert messages(text) == [
        "line 2: metadata.name: must be 1 to 100 letters, digits, '.', '_' or '-', the first a "
        "letter or digit"
    ]


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-d", "a" * 100])
def test_other_names_are_taken(name):
    assert load(document().replace("orders\n  ten", f"'{name}'\n  ten"), {}).name == name


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("stream2: x", "unknown key"),
        ("key: '${source.table'", "'${' is not closed by '}'"),
        ("key: '${}'", "'${}' names no field"),
        ("key: '${a.b.c.d}'", "has 4 segments, at most 3 are allowed"),
        ("key: '${source.tabel}'", "'source.tabel' is no field; did you mean 'source.table'?"),
        ("key: '${row.id}'", "'${row.id}' names no field of an event"),
    ],
)
def test_broken_templates_of_a_sink_are_refused(written, message):
    told = messages(document(sink=written))

    assert len(told) == 1
    assert message in told[0]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            "filter: {exclude_synthetic: true, synthetic_only: true}",
            "filter.synthetic_only: no event could pass it together with exclude_synthetic",
        ),
        (
            "filter: {exclude_synthetic: true, producers: [f]}",
            "filter.producers: no event could pass it together with exclude_synthetic",
        ),
        (
            "filter: {producers: [f, fliter]}",
            "filter.producers: no processor has the id 'fliter' (known: f)",
        ),
    ],
)
def test_a_filter_that_no_event_could_pass_is_refused(written, message):
    (told,) = messages(document(sink=written, spec="processors: [{type: filter, id: f}]"))
    assert told.endswith(f"spec.sinks[0].config.{message}")


def test_an_unknown_version_is_refused():
    assert messages("apiVersion: deltaforge/v2\n" + document()) == [
        "line 1: apiVersion: Input should be 'deltaforge/v1'"
    ]


def test_a_sink_that_does_not_exist_is_refused_by_name():
    (line,) = messages(document().replace("type: redis", "type: s3"))
    assert "spec.sinks[0].type: unknown sink 's3' (known: file, http, kafka," in line


KAFKA = "    - {type: kafka, config: {id: k, brokers: b, topic: t}}\n"


class TestSharding:
    @pytest.mark.parametrize(
        ("sharding", "stream", "line"),
        [
            ("{mode: hash}", "s", None),
            ("{mode: hash, count: 4}", "s-${shard}", None),
            ("{mode: range}", "s", "sharding.mode: Input should be 'hash'"),
            ("{mode: hash, count: 0}", "s", "sharding.count: Input should be greater than or"),
            ("{mode: hash, count: 4}", "s", "sharding.count: no sink here has partitions, or"),
            ("{mode: hash}", "s-${shard}", "stream: '${shard}' needs the number of shards, spec.s"),
            ("{mode: hash, key: '${afer.id}'}", "s", "sharding.key: '${afer.id}' names no field"),
            ("{mode: hash, key: '${shard}'}", "s", "sharding.key: the shard's number follows from"),
            ("{mode: hash, key: a.b.c.d}", "s", "sharding.key: template '${after.a.b.c.d}': "),
        ],
    )
    def test_what_has_no_meaning_is_refused_by_its_key(self, sharding, stream, line):
        text = document(spec=f"sharding: {sharding}")
        found = messages(text.replace("stream: orders", f'stream: "{stream}"'))

        assert [line in each for each in found] == ([] if line is None else [True])
        assert found or not unbuilt(text.replace("stream: orders", f'stream: "{stream}"'))

    def test_a_key_template_cannot_hold_the_shard(self):
        text = document(sink='key: "${shard}"', spec="sharding: {mode: hash, count: 2}")
        (told,) = messages(text)
        assert told.endswith("config.key: '${shard}' follows from the key, and cannot be in it")

    @pytest.mark.parametrize("key", ["customer", "${after.customer}"])
    def test_the_sharding_key_is_the_key_of_sinks_without_one(self, key):
        more = KAFKA + KAFKA.replace("id: k", 'id: own, key: "${after.id}"')
        text = document() + more + f'  sharding: {{mode: hash, key: "{key}", count: 8}}\n'

        sinks = load(text, {}).spec.sinks

        assert [sink.key_template for sink in sinks] == [
            "${after.customer}",
            "${after.customer}",
            "${after.id}",
        ]


class TestConnectionPolicy:
    MYSQL = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: a, tenant: t}
spec:
  source:
    type: mysql
    config: {id: m, dsn: "mysql://u:p@here:3307/shop", snapshot: {mode: initial%s}}
  sinks: [{type: stdout, config: {id: out}}]
  connection_policy: {default_mode: dedicated, %s}
"""
    REPLICA = "preferred_replica: read-replica-1"

    def test_it_is_the_sources(self):
        limits = "limits: {max_dedicated_per_source: 9}"
        source = load(self.MYSQL % ("", f"{self.REPLICA}, {limits}"), {}).spec.source

        assert source.snapshot.dsn.get_secret_value() == "read-replica-1"
        assert source.snapshot.limits() == {"max_connections": 2}

    def test_the_smaller_limit_holds(self):
        written = self.MYSQL % (", max_connections: 1", "limits: {max_dedicated_per_source: 9}")
        assert load(written, {}).spec.source.snapshot.max_connections == 1

    @pytest.mark.parametrize(
        ("snapshot", "policy", "key", "why"),
        [
            ("", "default_mode: shared", "default_mode", "connections cannot be shared"),
            ("", "default_mode: pooled", "default_mode", "Input should be 'dedicated'"),
            (
                "",
                "limits: {max_dedicated_per_source: 5}",
                "limits.max_dedicated_per_source",
                "5 are too few for a source of type mysql: .* allow 6 or more",
            ),
            (", dsn: other", REPLICA, "preferred_replica", "snapshot.dsn of the source names"),
            ("", "preferred_replica: 'no host'", "preferred_replica", "cannot be read"),
            ("", "preferred_replica: 'h:99999'", "preferred_replica", "cannot be read"),
        ],
    )
    def test_what_cannot_be_is_refused_by_its_key(self, snapshot, policy, key, why):
        written = (self.MYSQL % (snapshot, policy)).replace("{default_mode: dedicated, ", "{")
        (line,) = messages(written)
        assert re.search(rf"spec\.connection_policy\.{re.escape(key)}: .*{why}", line)

    def test_a_turso_database_has_no_replica_to_copy_from(self):
        source = 'source: {type: turso, config: {id: t, url: "http://h:1", tables: [a]}}'
        written = re.sub(r"source:\n.*\n.*", source, self.MYSQL % ("", self.REPLICA))
        (line,) = messages(written)
        assert "spec.connection_policy.preferred_replica: no rows can be copied" in line

    def test_the_login_of_a_replica_is_a_secret_and_its_name_is_none(self):
        named = self.MYSQL % ("", self.REPLICA)
        assert "preferred_replica: read-replica-1" in withhold(named, load(named, {})).text
        login = self.MYSQL % ("", "preferred_replica: 'mysql://u:planted@h/'")
        assert "planted" not in withhold(login, load(login, {})).text


class TestUnbuilt:
    BUILT = document().replace("type: redis", "type: memory")

    @pytest.mark.parametrize(
        ("written", "line"),
        [
            (
                document(spec="delivery: {parallelism: 4}"),
                "spec.delivery.parallelism: 4; here are no processors, and no sink that is "
                "written to over several connections: the stream would be no faster",
            ),
            (
                document().replace("type: scripted", "type: postgres")
                + "    - {type: nats, config: {id: n, url: n, subject: s}}\n",
                None,
            ),
        ],
    )
    def test_what_is_asked_for_in_vain_is_named_by_key(self, written, line):
        if line is None:
            assert check(written, {})
            return
        pipeline = load(written, {})

        assert line in pipeline.unbuilt()
        with pytest.raises(SpecError) as caught:
            pipeline.refuse_unbuilt()
        assert f"  {line}" in str(caught.value).splitlines()

    @pytest.mark.parametrize(
        "text",
        [
            document(spec="delivery: {parallelism: 4}\nprocessors: [{type: filter, id: f}]"),
            document()
            + "    - {type: http, config: {id: h, url: https://h/x}}\n"
            + "  delivery: {parallelism: 64}\n",
            document(spec="delivery: {parallelism: 1}"),
        ],
        ids=["a processor", "http", "one"],
    )
    def test_parallelism_is_obeyed_where_something_can_be_done_at_the_same_time(self, text):
        assert unbuilt(text) == []

    @pytest.mark.parametrize("parallelism", ["0", "65", "'4x'"])
    def test_parallelism_has_bounds(self, parallelism):
        (told,) = messages(document(spec=f"delivery: {{parallelism: {parallelism}}}"))
        assert "spec.delivery.parallelism: Input should be" in told

    @pytest.mark.parametrize("policy", ["mode: all", "mode: quorum, quorum: 2", "mode: required"])
    def test_no_commit_policy_is(self, policy):
        text = document() + THREE_SINKS + f"  commit_policy: {{{policy}}}\n"

        assert not [line for line in unbuilt(text) if "commit_policy" in line]


def test_json_encoding_copies_nothing():
    import pyarrow as pa

    values = pa.array([b"{}", None], pa.binary())
    encoder = ENCODINGS.load("json")().open(EncoderRequest("s", "mysql", None, lambda *_: None))

    assert encoder.encode(Bodies(values, None, None)).values is values


@pytest.mark.parametrize("room", [PROCESSORS, ENVELOPES, ENCODINGS, SINKS, SOURCES])
def test_every_plugin_of_the_list_can_be_loaded(room):
    assert all(issubclass(room.load(name), PluginSettings) for name in room.shipped)


def test_a_plugin_of_somebody_else_is_found_and_checked(tmp_path, monkeypatch):
    package = tmp_path / "stranger.py"
    package.write_text(
        "from typing import ClassVar\n"
        "from airflow_provider_deltaforge.sinks.contract import Sink\n"
        "class Pigeon(Sink):\n"
        "    destination_field: ClassVar[str] = 'loft'\n"
        "    loft: str\n"
        "    def open(self, pipeline):\n"
        "        return None\n"
        "class Egg(Sink):\n"
        "    destination_field: ClassVar[str] = 'loft'\n"
    )
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[deltaforge.sinks]\npigeon = stranger:Pigeon\negg = stranger:Egg\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = document() + "    - {type: pigeon, config: {id: p, loft: '${source.table}'}}\n"

    sink = load(text, {}).spec.sinks[1]

    assert (sink.destination, sink.envelope.__class__.__name__) == (
        "${source.table}",
        "NativeEnvelope",
    )
    with pytest.raises(SpecError, match=r"sink 'egg' \(stranger.Egg\) .*does not define open"):
        SINKS.load("egg")
    assert messages(text.replace("loft:", "lofd:")) == [
        "line 19: spec.sinks[1].config.lofd: unknown key; did you mean 'loft'?",
        "line 19: spec.sinks[1].config.loft: required, but not there",
    ]


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("archive", "needs an absolute path, or an address that begins with file:///"),
        ("ftp://host/folder", "needs an absolute path"),
        ("s3://AKIA:hush@bucket/folder", "holds credentials; take them out"),
        ("s3://bucket/folder?secret_key=hush", "holds credentials"),
        ("s3://bucket/folder?regoin=x", "unknown options 'regoin' behind its question mark"),
        ("file:///folder?region=x", "unknown options 'region' behind its question mark (known: no"),
        ("s3:///folder", "needs a bucket"),
        ("file://folder", "or a path, as file:///folder"),
        ("gs://bucket/folder", "gs:// is not supported: mount the store and name the path"),
        ("hdfs://host/folder", "hdfs:// is not supported"),
        ("abfs://container:hush@account.dfs.core.windows.net/x", "abfs:// is not supported"),
    ],
)
def test_an_archive_is_where_its_address_says_and_holds_no_credentials(directory, message):
    (found,) = messages(document(spec=f"archive: {{directory: '{directory}'}}"))

    assert found.startswith("line ")
    assert "spec.archive.directory" in found
    assert message in found
    assert "hush" not in found


@pytest.mark.parametrize(
    "directory",
    [
        "/var/lib/x?",
        "file:///var/lib/x",
        "s3://bucket/x?region=eu-central-1",
        "s3://bucket/x?scheme=http&endpoint_override=127.0.0.1:9000",
    ],
)
def test_other_archives_are_taken(directory):
    text = document(spec=f"archive: {{directory: '{directory}'}}")

    assert load(text, {}).spec.archive.directory == directory


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        *(("javascript, inline: 'e => e'", key) for key in ("cpu_ms", "timeout_ms", "mem_mb")),
        *(("sql, query: select 1", key) for key in ("timeout_ms", "mem_mb")),
    ],
)
def test_a_limit_beyond_what_clocks_and_memory_count_is_refused(kind, key):
    text = document(spec=f"processors: [{{type: {kind}, limits: {{{key}: {10**13}}}}}]")

    (problem,) = check(text, {})

    assert problem.key == f"spec.processors[0].limits.{key}"
    assert "less than or equal to" in problem.message


@pytest.mark.parametrize(
    ("kind", "config", "key"),
    [
        ("kafka", {"brokers": "h:1", "topic": "${EMPTY}"}, "topic"),
        ("kafka", {"brokers": "${EMPTY}", "topic": "t"}, "brokers"),
        ("file", {"path": "${EMPTY}"}, "path"),
    ],
)
def test_a_destination_that_is_empty_is_refused_by_its_key(kind, config, key):
    plain = yaml.safe_load(document())
    plain["spec"]["sinks"] = [{"type": kind, "config": {"id": "a", **config}}]
    with pytest.raises(SpecError, match=rf"spec\.sinks\[0\]\.config\.{key}"):
        load(yaml.safe_dump(plain), {"EMPTY": ""})


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"cdc_mode": "native", "tracking_column": "at"}, "tracking_column"),
        ({"cdc_mode": "triggers", "tracking_column": "at"}, "tracking_column"),
    ],
)
def test_what_a_mode_of_turso_does_not_use_is_refused_by_its_key(settings, key):
    plain = yaml.safe_load(document())
    config = {"id": "t", "url": "x.db", "tables": ["*"], **settings}
    plain["spec"]["source"] = {"type": "turso", "config": config}
    with pytest.raises(SpecError, match=rf"spec\.source\.config\.{key}: "):
        load(yaml.safe_dump(plain), {}).refuse_unbuilt()
