"""The Kafka sink against a broker with passwords, permissions and TLS."""

import base64
import json
import time
import uuid
from contextlib import closing

import confluent_kafka
import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError
from airflow_provider_deltaforge.sinks.kafka import KafkaSink
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.sinks import strict_kafka
from tests.sinks.kafka_work import create, rows, until_written, values
from tests.sinks.strict_kafka import SECURITY
from tests.waiting import PATIENCE_S, wait_until

PRODUCTION = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "app",
    "ssl.endpoint.identification.algorithm": "https",
    "acks": "all",
    "enable.idempotence": "true",
    "retries": "2147483647",
    "retry.backoff.ms": "100",
    "delivery.timeout.ms": "300000",
    "request.timeout.ms": "30000",
    "batch.size": "65536",
    "linger.ms": "10",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "100000",
    "queue.buffering.max.kbytes": "1048576",
}
"""The settings of the documents' page for production, but for places and passwords."""
MSK = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": ("software.amazon.msk.auth.iam.IAMClientCallbackHandler"),
}
"""The settings of the documents' page for Amazon MSK."""
OF_GUEST = AclBindingFilter(
    ResourceType.ANY,
    None,
    ResourcePatternType.ANY,
    "User:guest",
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    strict = strict_kafka.start(tmp_path_factory.mktemp("strict-kafka"))
    yield strict
    strict.server.kill()


@pytest.fixture
def server(strict):
    return strict.server


@pytest.fixture
def opened():
    writers = []

    def open_one(brokers, conf, **settings):
        sink = KafkaSink(brokers=brokers, topic="t", client_conf=conf, **settings)
        writers.append(sink.open("p"))
        return writers[-1]

    yield open_one
    for writer in writers:
        writer.close()


def first_use(sink):
    """Open and write: a broker that is too slow to refuse the one refuses the other."""
    with closing(sink.open("p")) as writer:
        writer.write(rows("t", range(1)))


class TestTls:
    def test_the_right_authority_works(self, strict, opened):
        conf = {"security.protocol": "ssl", "ssl.ca.location": str(strict.ours.certificate)}

        assert list(opened(strict.places["TLS"], conf).write(rows("secured", range(3)))) == []

    def test_an_unknown_authority_is_an_access_error(self, strict):
        conf = {"security.protocol": "ssl"}
        with pytest.raises(AccessError, match="certificate"):
            first_use(KafkaSink(brokers=strict.places["TLS"], topic="t", client_conf=conf))

    def test_our_certificate_is_shown(self, strict, opened):
        conf = {
            "security.protocol": "SSL",
            "ssl.ca.location": str(strict.ours.certificate),
            "ssl.certificate.location": str(strict.client.certificate),
            "ssl.key.location": str(strict.client.key),
        }

        assert list(opened(strict.places["MUTUAL"], conf).write(rows("secured", range(3)))) == []

    def test_no_certificate_of_ours_is_an_access_error(self, strict):
        conf = {"security.protocol": "SSL", "ssl.ca.location": str(strict.ours.certificate)}
        with pytest.raises(AccessError, match="certificate"):
            first_use(KafkaSink(brokers=strict.places["MUTUAL"], topic="t", client_conf=conf))


class TestPasswords:
    def test_a_wrong_one_is_an_access_error(self, server, caplog):
        conf = {**SECURITY, "sasl.password": "wr0ng-s3cret"}
        with pytest.raises(AccessError, match="client_conf") as caught:
            first_use(KafkaSink(brokers=server.dsn(), topic="t", client_conf=conf))

        assert "wr0ng-s3cret" not in str(caught.value) + caplog.text

    def test_none_in_a_plain_connection_is_refused_not_hung(self, server, opened):
        with pytest.raises(RetryableError, match="check that the brokers"):
            opened(server.dsn(), {}, send_timeout_secs=2).write(rows("t", range(1)))

    def test_one_that_is_changed_while_running_ends_the_writer(self, strict, opened, caplog):
        topic = create(strict.server.dsn(), security=SECURITY)
        place = strict.places["LOCKED"]
        conf = {**PRODUCTION, "ssl.ca.location": str(strict.ours.certificate)}
        strict.set_password("app", "0ld-s3cret")
        old, new = ({**conf, "sasl.password": each} for each in ("0ld-s3cret", "n3w-s3cret"))
        writer = until_known(opened, place, old, rows(topic, range(10)))
        strict.set_password("app", "n3w-s3cret")

        written, error = until_refused(writer, topic, 10)
        until_known(opened, place, new, rows(topic, range(written, written + 10)))

        assert "credentials in client_conf" in str(error)
        assert "s3cret" not in str(error) + caplog.text
        found = values_of(strict, topic)
        assert list(dict.fromkeys(found)) == [value(n) for n in range(written + 10)]


class TestMsk:
    """Amazon's login: its signer, and a broker that asks for tokens, though not for Amazon's."""

    @pytest.fixture
    def conf(self, strict, monkeypatch):
        for name, text in (("ACCESS_KEY_ID", "AKIAPLANTED"), ("SECRET_ACCESS_KEY", "planted-s3")):
            monkeypatch.setenv(f"AWS_{name}", text)
        monkeypatch.setenv("AWS_REGION", "eu-north-1")
        return {**MSK, "ssl.ca.location": str(strict.ours.certificate)}

    def test_what_the_signer_makes_is_shown_to_the_broker(self, strict, conf, caplog):
        place = strict.places["TOKENS"]

        with pytest.raises(AccessError, match="invalid_token") as caught:
            first_use(KafkaSink(brokers=place, topic="t", client_conf=conf))
        assert "planted" not in str(caught.value) + caplog.text

    def test_a_token_is_renewed_in_time(self, strict, conf, opened, monkeypatch):
        made = []

        def sign(region):
            made.append(region)
            until = time.time() + 2
            return unsigned(until), int(until * 1000)

        monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token", sign)
        topic = create(strict.server.dsn(), security=SECURITY)
        writer = opened(strict.places["TOKENS"], conf)
        until_written(writer, rows(topic, range(10)))
        wait_until(lambda: len(made) > 1)
        until_written(writer, rows(topic, range(10, 20)))

        place = {"brokers": strict.places["TOKENS"], "topic": topic, "client_conf": conf}
        with closing(KafkaSink(**place).open_reader("p")) as reader:  # Clients of other kinds.
            held = [text for part in reader.read({topic}) for text in part.values.to_pylist()]
        assert held == [value(n) for n in range(20)]
        assert set(made) == {"eu-north-1"}

    def test_no_credentials_are_an_access_error(self, strict, conf, monkeypatch, tmp_path):
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
            monkeypatch.delenv(f"AWS_{name}")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))

        with pytest.raises(AccessError, match="AWS gives no credentials"):
            first_use(KafkaSink(brokers=strict.places["TOKENS"], topic="t", client_conf=conf))


def unsigned(until):
    """Return a token that the broker takes; it is signed by nobody."""
    parts = {"alg": "none"}, {"sub": "token", "iat": time.time() - 1, "exp": until}
    texts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts)
    return ".".join(text.rstrip("=") for text in texts) + "."


def until_known(opened, place, conf, batch):
    """Write with a password that the broker learns in a moment; return the writer."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            writer = opened(place, conf, send_timeout_secs=60)
            until_written(writer, batch)
        except AccessError:
            if time.monotonic() > deadline:
                raise
        else:
            return writer


def until_refused(writer, topic, start):
    """Write on until access is refused; return how far it came, and the error."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            writer.write(rows(topic, range(start, start + 10)))
        except AccessError as error:
            return start, error
        start += 10
        time.sleep(0.05)
    raise AssertionError("the old password went on working")


def values_of(strict, topic):
    return values(strict.server.dsn(), topic, SECURITY)


class TestPermissions:
    def test_a_topic_without_permission_is_an_access_error(self, server, opened):
        guest = {"sasl.username": "guest", "sasl.password": "guest-s3cret"}

        with pytest.raises(AccessError, match=r"'forbidden'.*uthoriz"):
            opened(server.dsn(), {**SECURITY, **guest}).write(rows("forbidden", range(3)))

    def test_an_unknown_topic_is_retryable_and_named(self, server, opened):
        writer = opened(server.dsn(), SECURITY)

        with pytest.raises(RetryableError, match=r"'nowhere'.*create the topic"):
            writer.write(rows("nowhere", range(3)))
        create(server.dsn(), name="nowhere", security=SECURITY)

        assert list(writer.write(rows("nowhere", range(3)))) == []


class TestPermissionsOfExactlyOnce:
    """Those of the page, and no more."""

    def grant(self, admin, *, but=None):
        topic, literal = ResourceType.TOPIC, ResourcePatternType.LITERAL
        transactions = (ResourceType.TRANSACTIONAL_ID, "deltaforge-orders/kafka")
        positions = "_deltaforge.orders.positions"
        may = AclOperation
        wanted = [
            ((topic, "secured", literal), may.WRITE),
            ((*transactions, ResourcePatternType.PREFIXED), may.WRITE),
        ]
        for operation in (may.READ, may.WRITE, may.DESCRIBE_CONFIGS, may.CREATE):
            wanted.append(((topic, positions, literal), operation))
        kept = [
            AclBinding(*place, "User:guest", "*", operation, AclPermissionType.ALLOW)
            for place, operation in wanted
            if place[0] is not but or operation is not may.WRITE
        ]
        for done in admin.create_acls(kept).values():
            done.result(timeout=60)
        wait_until(lambda: len(admin.describe_acls(OF_GUEST).result(timeout=60)) == len(kept))

    @pytest.fixture
    def admin(self, server):
        admin = AdminClient({"bootstrap.servers": server.dsn(), **SECURITY})
        yield admin
        admin.delete_acls([OF_GUEST])[OF_GUEST].result(timeout=60)
        wait_until(lambda: not admin.describe_acls(OF_GUEST).result(timeout=60))

    @pytest.fixture
    def other(self, server):
        conf = {"bootstrap.servers": server.dsn(), **SECURITY, "transactional.id": "other"}
        with closing(Producer(conf)) as other:
            yield other

    def open(self, server):
        conf = {**SECURITY, "sasl.username": "guest", "sasl.password": "guest-s3cret"}
        place = {"brokers": server.dsn(), "topic": "secured", "client_conf": conf}
        return closing(KafkaSink(id="kafka", exactly_once=True, **place).open("orders"))

    def deliver(self, server):
        after = SinkPosition({"tx": 1})
        with self.open(server) as writer:
            before = writer.recover() or SinkPosition({})
            assert list(writer.write_once(rows("secured", range(3)), before, after)) == []
            assert writer.recover() == after

    def test_they_are_enough(self, server, admin):
        self.grant(admin)
        self.deliver(server)

    def test_the_group_that_nobody_joins_need_not_be_seen(self, server, admin, other, monkeypatch):
        """The client asks for it, and is refused, while it waits for another's transaction."""
        self.grant(admin)
        self.deliver(server)
        other.init_transactions(60)
        other.begin_transaction()
        other.produce("_deltaforge.orders.positions", b"{}", b"orders/other")
        other.flush(60)
        told, ends = [], iter([lambda: other.abort_transaction(60)])

        class Noting(Consumer):
            def consume(self, *args, **more):
                found = super().consume(*args, **more)
                told.extend(one.error().code() for one in found if one.error() is not None)
                if not found and KafkaError.GROUP_AUTHORIZATION_FAILED in told:
                    # Its end is seen a little later than it is told.
                    next(ends, lambda: None)()
                return found

        monkeypatch.setattr(confluent_kafka, "Consumer", Noting)
        with self.open(server) as writer:
            assert writer.recover() == SinkPosition({"tx": 1})
        assert KafkaError.GROUP_AUTHORIZATION_FAILED in told

    @pytest.mark.parametrize("missing", [ResourceType.TRANSACTIONAL_ID, ResourceType.TOPIC])
    def test_without_one_it_is_an_access_error(self, server, admin, missing):
        self.grant(admin, but=missing)
        with pytest.raises(AccessError, match=r"uthoriz.*grant"):
            self.deliver(server)


class TestTopicsThatAreMade:
    """This broker makes none by itself."""

    def open(self, opened, server, conf=SECURITY, **wanted):
        return opened(server.dsn(), conf, create_topics=wanted)

    def test_each_as_the_document_says(self, server, opened):
        wanted = {"partitions": 3, "config": {"cleanup.policy": "compact", "segment.ms": 60_000}}
        writer = self.open(opened, server, **wanted)
        names = [f"made-{uuid.uuid4().hex[:8]}" for _ in range(2)]

        for name in (*names, "secured"):
            writer.write(rows(name, range(5)))

        found = AdminClient({"bootstrap.servers": server.dsn(), **SECURITY})
        topics = found.list_topics(timeout=60).topics
        assert [len(topics[name].partitions) for name in (*names, "secured")] == [3, 3, 1]
        place = ConfigResource(ConfigResource.Type.TOPIC, names[0])
        told = found.describe_configs([place])[place].result(timeout=60)
        assert (told["cleanup.policy"].value, told["segment.ms"].value) == ("compact", "60000")
        assert values(server.dsn(), names[1], SECURITY) == [value(n) for n in range(5)]

    def test_as_the_cluster_would(self, server, opened):
        name = f"made-{uuid.uuid4().hex[:8]}"

        assert list(self.open(opened, server).write(rows(name, range(3)))) == []

    def test_without_permission_it_is_an_access_error(self, server, opened):
        guest = {**SECURITY, "sasl.username": "guest", "sasl.password": "guest-s3cret"}

        with pytest.raises(AccessError, match=r"'new'.*uthoriz.*grant"):
            self.open(opened, server, guest).write(rows("new", range(1)))

    @pytest.mark.parametrize(
        "wanted", [{"replication_factor": 3}, {"config": {"no.such": "x"}}], ids=["copies", "key"]
    )
    def test_what_the_cluster_refuses_is_fatal_and_named(self, server, opened, wanted):
        with pytest.raises(FatalError, match=r"'new' cannot be made.*create_topics"):
            self.open(opened, server, **wanted).write(rows("new", range(1)))

    def test_an_illegal_name_is_set_aside_alone(self, server, opened):
        name = f"made-{uuid.uuid4().hex[:8]}"
        batch = messages([("not legal!", b"k", value(0)), (name, b"k", value(1))])

        (rejection,) = self.open(opened, server).write(batch)

        assert (rejection.event_row, rejection.kind) == (0, "routing")
        assert values(server.dsn(), name, SECURITY) == [value(1)]
