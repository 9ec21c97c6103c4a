"""What a document may say about a Kafka sink; no broker is needed."""

import base64
import pickle
import re
import sys
import time

import pytest
from confluent_kafka import KafkaError, Producer
from pydantic import ValidationError

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sinks.kafka import KafkaSink
from airflow_provider_deltaforge.sinks.kafka.configuration import patience_s, producer_settings
from airflow_provider_deltaforge.sinks.kafka.error_codes import KafkaCode
from airflow_provider_deltaforge.spec.load import check, load
from tests.sinks.certificates import certified
from tests.spec.documents import DOCUMENTS, ENVIRONMENT, document

IAM = "software.amazon.msk.auth.iam.IAMLoginModule"
MSK = {"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"}
PRODUCTION = ("confluent", "durability", "latency", "mtls", "throughput")
NOWHERE = "127.0.0.1:9"


def sink(conf=None, **settings):
    return KafkaSink(brokers=NOWHERE, topic="t", client_conf=conf or {}, **settings)


def test_the_defaults_of_the_documents():
    given = sink()

    assert (given.id, given.required, given.send_timeout_secs) == ("kafka", True, 30)
    assert (given.exactly_once, given.tombstones, given.unbuilt()) == (False, False, [])


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("acks", "all"),
        ("enable.idempotence", "true"),
        ("max.in.flight", 5),
        ("compression.type", "lz4"),
        ("linger.ms", 5),
        ("batch.size", 1_048_576),
        ("request.timeout.ms", 30_000),
        ("retry.backoff.ms", 100),
        ("client.id", "deltaforge-kafka"),
        ("bootstrap.servers", NOWHERE),
    ],
)
def test_the_producer_is_made_with_what_the_documents_say(key, expected):
    assert producer_settings(sink())[key] == expected


def test_client_conf_wins_under_either_name_of_a_setting():
    conf = {
        "queue.buffering.max.ms": "50",
        "compression.codec": "zstd",
        "socket.keepalive.enable": False,
    }

    settings = producer_settings(sink(conf))

    assert (settings["linger.ms"], settings["compression.type"]) == ("50", "zstd")
    assert settings["socket.keepalive.enable"] == "false"
    assert "queue.buffering.max.ms" not in settings


def test_one_setting_under_two_names_is_refused():
    with pytest.raises(SpecError, match=r"client_conf\.delivery\.timeout\.ms and message"):
        patience_s(sink({"message.timeout.ms": 1, "delivery.timeout.ms": 2}))


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        pytest.param({}, ("true", 5), id="default"),
        pytest.param({"acks": "all"}, ("true", 5), id="all"),
        pytest.param({"acks": -1}, ("true", 5), id="-1 is all"),
        pytest.param({"acks": "1"}, ("false", 1), id="leader only"),
        pytest.param({"request.required.acks": 0}, ("false", 1), id="none"),
        pytest.param({"enable.idempotence": False}, ("false", 1), id="off"),
        pytest.param({"acks": 1, "max.in.flight": 3}, ("false", 3), id="as the user says"),
    ],
)
def test_weaker_acks_give_up_idempotence_with_a_warning(conf, expected, caplog):
    settings = producer_settings(sink(conf))

    assert (settings["enable.idempotence"], settings["max.in.flight"]) == expected
    assert ("idempotence" in caplog.text) == (expected[0] == "false")


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        pytest.param({}, 30, id="send_timeout_secs"),
        pytest.param({"message.timeout.ms": "5000"}, 5, id="shorter"),
        pytest.param({"delivery.timeout.ms": 300_000}, 30, id="longer"),
        pytest.param({"message.timeout.ms": 0}, 30, id="unlimited"),
    ],
)
def test_the_shorter_timeout_holds(conf, expected):
    assert patience_s(sink(conf)) == expected
    assert producer_settings(sink(conf))["message.timeout.ms"] == 0


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        pytest.param({}, 15_000, id="half of the expiry"),
        pytest.param({"message.timeout.ms": "5000"}, 2500, id="half of a shorter one"),
        pytest.param({"socket.timeout.ms": 900}, 900, id="of the document"),
    ],
)
def test_a_silent_connection_ends_before_its_messages_expire(conf, expected):
    assert producer_settings(sink(conf))["socket.timeout.ms"] == expected


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"lingre.ms": 5}, "client_conf.lingre.ms"),
        ({"acks": "some"}, "client_conf.acks"),
        ({"linger.ms": "soon"}, "client_conf.linger.ms"),
        ({"message.timeout.ms": "soon"}, "client_conf.message.timeout.ms"),
        ({"max.in.flight": 9}, "client_conf.max.in.flight"),
        ({"acks": 1, "enable.idempotence": True}, "client_conf.acks"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN"}, "sasl.username"),
        ({"key.serializer": "X"}, "client_conf.key.serializer"),
    ],
)
def test_what_librdkafka_refuses_is_named_by_its_key(conf, named):
    with pytest.raises(SpecError) as caught:
        sink(conf).open("p")

    assert named in str(caught.value)


@pytest.mark.parametrize("value", ["1234", "12.5", "true"])
@pytest.mark.parametrize("key", ["sasl.password", "ssl.key.password"])
def test_a_secret_that_is_no_text_is_refused_by_its_key(key, value):
    text = (
        document().replace("type: redis", "type: kafka").replace("uri: redis://cache", "brokers: b")
    )
    text = text.replace("stream: orders", f"topic: t\n        client_conf: {{{key}: {value}}}")

    problems = [str(problem) for problem in check(text, {})]

    assert problems == [
        f"line 17: spec.sinks[0].config.client_conf: client_conf.{key} may be a secret, which is "
        "text; put it in quotes"
    ]
    assert check(text.replace(value, f"'{value}'"), {}) == []


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "needs security.protocol: SASL_SSL"),
        ({**MSK, "sasl.jaas.config": "a.b.Module required;"}, "client_conf.sasl.jaas.config"),
        ({**MSK, "sasl.jaas.config": f'{IAM} required awsStsRegion="x";'}, "awsStsRegion is not"),
        ({**MSK, "sasl.client.callback.handler.class": "a.B"}, "callback.handler.class"),
        ({"sasl.jaas.config": "x required;"}, "client_conf.sasl.jaas.config.*AWS_MSK_IAM alone"),
        ({"sasl.client.callback.handler.class": "a.B"}, "handler.class.*AWS_MSK_IAM alone"),
        ({"transactional.id": "x"}, "client_conf.transactional.id"),
        ({"error_cb": "x"}, "client_conf.error_cb"),
        ({"delivery.report.only.error": "x"}, "client_conf.delivery.report.only.error"),
    ],
)
def test_what_cannot_work_is_refused_with_the_document(conf, message):
    with pytest.raises(ValidationError, match=message):
        sink(conf)


class TestMsk:
    """Amazon's login by IAM: what the Java client's settings mean to AWS's own signer."""

    @pytest.fixture(autouse=True)
    def credentials(self, monkeypatch, tmp_path):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHEDRIVER")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
        profiles = "[shop]\naws_access_key_id = AKIAOFTHESHOP\naws_secret_access_key = planted\n"
        (tmp_path / "profiles").write_text(profiles)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "profiles"))
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)

    def token(self, brokers, jaas=f"{IAM} required;"):
        conf = {**MSK, "sasl.jaas.config": jaas}
        made = producer_settings(KafkaSink(brokers=brokers, topic="t", client_conf=conf))
        assert made["sasl.mechanism"] == "OAUTHBEARER"
        assert not made.keys() & {"sasl.jaas.config", "sasl.client.callback.handler.class"}
        text, until = made["oauth_cb"]("")
        assert 800 < until - time.time() <= 900
        return base64.urlsafe_b64decode(text + "==").decode()

    @pytest.mark.parametrize(
        ("brokers", "region"),
        [
            ("b-1.shop.abc.c2.kafka.us-east-1.amazonaws.com:9098", "us-east-1"),
            ("boot-x.c1.kafka-serverless.ap-southeast-2.amazonaws.com:9098", "ap-southeast-2"),
        ],
    )
    def test_the_region_is_the_brokers(self, brokers, region):
        url = self.token(brokers)

        assert url.startswith(f"https://kafka.{region}.amazonaws.com/?Action=kafka-cluster")
        assert "AKIAOFTHEDRIVER" in url

    def test_the_region_of_the_environment(self, monkeypatch):
        with pytest.raises(SpecError, match="set AWS_REGION"):
            self.token(NOWHERE)
        monkeypatch.setenv("AWS_REGION", "eu-west-3")

        assert "kafka.eu-west-3." in self.token(NOWHERE)

    def test_a_profile(self, monkeypatch):
        monkeypatch.setenv("AWS_REGION", "eu-west-3")

        assert "AKIAOFTHESHOP" in self.token(NOWHERE, f'{IAM} required awsProfileName="shop";')


def test_exactly_once_is_made_with_what_the_documents_say():
    told = producer_settings(sink(exactly_once=True), "shop")

    assert told["transactional.id"] == "deltaforge-shop/kafka"
    assert (told["transaction.timeout.ms"], told["message.timeout.ms"]) == (60_000, 30_000)
    assert (told["request.timeout.ms"], told["acks"]) == (15_000, "all")


def test_a_transaction_lasts_as_long_as_its_messages_may():
    long = sink({"delivery.timeout.ms": 300_000}, exactly_once=True)
    own = sink({"transaction.timeout.ms": 90_000}, exactly_once=True)

    patient = sink(exactly_once=True, send_timeout_secs=300)
    mixed = sink({"transaction.timeout.ms": 90_000}, exactly_once=True, send_timeout_secs=300)

    assert producer_settings(long)["transaction.timeout.ms"] == 300_000
    assert producer_settings(own)["transaction.timeout.ms"] == 90_000
    for settings, longest_ms in ((patient, 300_000), (mixed, 30_000)):
        assert producer_settings(settings)["message.timeout.ms"] == longest_ms
    assert producer_settings(patient)["transaction.timeout.ms"] == 300_000


@pytest.mark.parametrize(
    ("conf", "settings", "key"),
    [
        ({"acks": "1"}, {"exactly_once": True}, "client_conf.acks"),
        ({"acks": 0}, {"exactly_once": True}, "client_conf.acks"),
        ({"enable.idempotence": False}, {"exactly_once": True}, "enable.idempotence"),
        ({}, {"positions_topic": "p"}, "positions_topic"),
    ],
)
def test_what_exactly_once_cannot_be_with_is_refused(conf, settings, key):
    with pytest.raises(ValidationError, match=key):
        sink(conf, **settings)


@pytest.mark.parametrize(
    "key",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
    ],
)
def test_secrets_do_not_print_but_reach_the_producer(key):
    given = sink({key: "hush-hush"})

    shown = f"{given!r} {given} {given.model_dump()} {given.model_dump_json()}"
    assert "hush-hush" not in shown
    assert producer_settings(given)[key] == "hush-hush"


def test_a_secret_does_not_reach_an_error():
    conf = {"ssl.key.pem": "hush-hush", "security.protocol": "ssl", "sasl.password": "not in PEM"}

    with pytest.raises(SpecError, match=r"client_conf\.ssl\.key\.pem") as caught:
        sink(conf).open("p")

    assert "hush-hush" not in str(caught.value)
    assert "not in PEM" not in str(caught.value)


def test_a_refused_document_does_not_show_its_secrets():
    with pytest.raises(ValidationError) as caught:
        sink({"sasl.jaas.config": "password=hush-hush"}, tpoic="x")

    assert "hush-hush" not in str(caught.value)


def test_description_with_secrets_travels_to_another_process():
    given = sink({"sasl.password": "hush-hush", "linger.ms": 7, "socket.keepalive.enable": True})

    assert pickle.loads(pickle.dumps(given)) == given


@pytest.mark.parametrize("name", list(KafkaCode.__members__))
def test_codes_are_the_drivers(name):
    assert getattr(KafkaError, name) == KafkaCode[name]


def test_a_missing_driver_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)

    with pytest.raises(SpecError, match=r"airflow-provider-deltaforge\[kafka\]"):
        sink().open("p")


@pytest.mark.parametrize(
    "name", ["example_production_kafka", *(f"production_kafka_{each}" for each in PRODUCTION)]
)
def test_the_settings_of_the_documents_for_production_are_taken(name, tmp_path):
    text = DOCUMENTS[f"seed_{name}"].read_text()
    files = certified(tmp_path)
    places = {
        "/etc/ssl/certs/client.pem": files.certificate,
        "/etc/ssl/private/client.key": files.key,
    }
    for place in re.findall(r"/etc/ssl/\S+(?:pem|key)", text):
        text = text.replace(place, str(places.get(place, files.certificate)))
    (given,) = load(text, ENVIRONMENT).spec.sinks

    Producer({**producer_settings(given, "p"), "log_level": 0}).purge()


def test_how_topics_are_made():
    wanted = {"partitions": 3, "replication_factor": 2, "config": {"cleanup.policy": "compact"}}

    assert sink().create_topics is None
    assert sink(create_topics={}).create_topics.partitions is None
    assert sink(create_topics=wanted).create_topics.model_dump() == wanted
    for wrong in ({"partitions": 0}, {"replicas": 1}, {"config": {"a": None}}):
        with pytest.raises(ValidationError, match=r"create_topics\."):
            sink(create_topics=wrong)


def test_sinks_of_different_pipelines_do_not_shut_each_other_out():
    one = producer_settings(sink(id="eu-kafka", exactly_once=True), "shop")
    another = producer_settings(sink(id="kafka", exactly_once=True), "shop-eu")

    assert one["transactional.id"] != another["transactional.id"]
