"""Small documents for tests: only plug-ins that need no driver."""

from pathlib import Path
from textwrap import dedent, indent

PIPELINES = Path(__file__).parents[2] / "dags" / "pipelines"
EXAMPLES = PIPELINES.parent / "examples"
DOCUMENTS = {
    path.stem: path
    for path in sorted([*PIPELINES.glob("*.yaml"), *EXAMPLES.glob("*.yaml")], key=lambda p: p.stem)
}
"""Every document that ships, by name."""

ENVIRONMENT = {
    "CONFLUENT_API_KEY": "key",
    "CONFLUENT_API_SECRET": "planted-confluent-secret",
    "KAFKA_BROKERS": "kafka.example.com:9092",
    "KAFKA_PASSWORD": "planted-kafka-password",
    "KAFKA_USERNAME": "deltaforge",
    "MYSQL_DSN": "mysql://cdc:planted-mysql-password@db.example.com:3306/shop",
    "NATS_PASS": "planted-nats-password",
    "NATS_URL": "nats://nats.example.com:4222",
    "NATS_USER": "deltaforge",
    "POSTGRES_DSN": "postgres://cdc:planted-postgres-password@db.example.com:5432/shop",
    "REDIS_URI": "redis://:planted-redis-password@cache.example.com:6379/0",
    "SHOP_DB": "/var/lib/shop/shop.db",
    "SHOP_OUTPUT": "/var/lib/shop/out",
    "SSL_KEY_PASSWORD": "planted-key-password",
}
"""Every variable that the documents below ``dags`` name."""


def document(source="", sink="", spec="", metadata=""):
    """Return a document; each argument is YAML put into the block it is named after."""

    def part(text, columns):
        return indent(dedent(text).strip("\n"), " " * columns)

    return "\n".join(
        [
            "metadata:",
            "  name: orders",
            "  tenant: acme",
            part(metadata, 2),
            "spec:",
            "  source:",
            "    type: scripted",
            "    config:",
            "      id: source-a",
            part(source, 6),
            "  sinks:",
            "    - type: redis",
            "      config:",
            "        id: sink-a",
            "        uri: redis://cache",
            "        stream: orders",
            part(sink, 8),
            part(spec, 2),
            "",
        ]
    )
