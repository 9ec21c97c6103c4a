"""A broker with passwords, permissions and TLS, which makes no topics by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.servers import kafka
from tests.servers.process import HOST, Server, free_port
from tests.sinks.certificates import Certified, certified
from tests.sinks.kafka_work import create

PASSWORD = "kafka-s3cret"
SECURITY = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "df",
    "sasl.password": PASSWORD,
}
_PROTOCOLS = {
    "CLIENTS": "SASL_PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "LOCKED": "SASL_SSL",
    "TOKENS": "SASL_SSL",
}
_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Strict:
    """``server`` takes ``df`` and ``guest`` with passwords, ``tls`` anybody over TLS, ``mutual``
    asks for the certificate ``client``, ``locked`` for SCRAM passwords, every two seconds, and
    ``tokens`` for such of OAUTHBEARER, signed by nobody."""

    server: Server
    places: Mapping[str, str]
    ours: Certified
    client: Certified

    def set_password(self, user: str, password: str) -> None:
        """Make a SCRAM user, or change its password."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        admin = AdminClient({"bootstrap.servers": self.server.dsn(), **SECURITY})
        admin.alter_user_scram_credentials([change])[user].result(timeout=60)


def start(directory: Path) -> Strict:
    """Start it; the topic ``secured`` is there."""
    ours, client = certified(directory, "broker"), certified(directory, "client")
    ports = {name: free_port() for name in _PROTOCOLS}
    places = {name: f"{HOST}:{port}" for name, port in ports.items()}
    listeners = {name: f"{name}://{place}" for name, place in places.items()}
    (directory / "controller.port").write_text(str(ports["CONTROLLER"]))
    accounts = f'username="df" password="{PASSWORD}" user_df="{PASSWORD}" user_guest="guest-s3cret"'
    keystores = {
        f"listener.name.{name}.ssl.keystore.{part}": text
        for name in ("tls", "mutual", "locked", "tokens")
        for part, text in (("type", "PEM"), ("location", str(ours.both)))
    }
    settings = {
        "auto.create.topics.enable": "false",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:df;User:ANONYMOUS;User:app;User:token;User:CN=client",
        "listeners": ",".join(listeners.values()),
        "advertised.listeners": ",".join(
            each for name, each in listeners.items() if name != "CONTROLLER"
        ),
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in _PROTOCOLS.items()),
        **keystores,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(client.certificate),
        "listener.name.locked.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.locked.scram-sha-512.sasl.jaas.config": (
            f"{_MODULES}.scram.ScramLoginModule required;"
        ),
        "listener.name.locked.scram-sha-512.connections.max.reauth.ms": "2000",
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.tokens.oauthbearer.sasl.jaas.config": (
            f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.clients.plain.sasl.jaas.config": (
            f"{_MODULES}.plain.PlainLoginModule required {accounts};"
        ),
    }
    server = kafka.start(directory, ports["CLIENTS"], sasl_password=PASSWORD, settings=settings)
    create(server.dsn(), name="secured", security=SECURITY)
    return Strict(server, places, ours, client)
