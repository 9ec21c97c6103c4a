"""Hands on the servers of ``./dev.sh up``: the short verbs of the examples."""

import asyncio
import logging
import os
import shutil
import sys
import time
from typing import Annotated, Any

import typer

from tests.servers import mysql
from tests.servers.process import HOST

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

_QUIET = logging.getLogger(__name__)  # librdkafka repeats each failed connection, we say it once.
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False
_BROKER = os.environ.get("DELTAFORGE_BOOTSTRAP", f"{HOST}:39092")
_REDIS_PORT = "36379"
_NATS = f"nats://{HOST}:34222"
_Arguments = Annotated[list[str] | None, typer.Argument(help="handed to the client")]
_OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command("k-create")
def k_create(topic: str, partitions: int = typer.Argument(1)) -> None:
    """Create a topic."""
    from confluent_kafka.admin import NewTopic

    admin = _admin()
    [future] = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
    try:
        future.result(30)
    except Exception as error:
        raise typer.Exit(_complain(str(error))) from error
    print(f"created {topic} with {partitions} partitions")


@app.command("k-list")
def k_list() -> None:
    """List the topics and their partition counts."""
    topics = _topics(_admin())
    for name in sorted(topics):
        print(f"{name}\t{len(topics[name].partitions)}")


@app.command("k-consume")
def k_consume(
    topic: str,
    from_beginning: bool = typer.Option(False, "--from-beginning"),
    limit: int = typer.Option(0, help="stop after this many messages"),
    idle_s: float = typer.Option(0, help="stop after this many seconds without a message"),
) -> None:
    """Print the messages of a topic until interrupted."""
    _admin()
    consumer = _consumer("earliest" if from_beginning else "latest")
    consumer.subscribe([topic])
    count, last = 0, time.monotonic()
    while not (limit and count >= limit):
        message = consumer.poll(0.2)
        if message is None:
            if idle_s and time.monotonic() - last > idle_s:
                break
            continue
        if message.error():
            raise typer.Exit(_complain(message.error().str()))
        count, last = count + 1, time.monotonic()
        print(_text(message.value()), flush=True)
    consumer.close()


@app.command("k-produce")
def k_produce(topic: str) -> None:
    """Send each line of standard input as a message; ``key<TAB>value`` sets the key."""
    from confluent_kafka import Producer

    _admin()
    producer = Producer({"bootstrap.servers": _BROKER}, logger=_QUIET)
    for line in sys.stdin:
        key, tab, value = line.rstrip("\n").partition("\t")
        producer.produce(topic, key=key if tab else None, value=value if tab else key)
        producer.poll(0)
    if producer.flush(30):
        raise typer.Exit(_complain(f"messages are not delivered; is {_BROKER} up?"))


@app.command("k-inspect")
def k_inspect(topic: str, count: int = typer.Argument(5)) -> None:
    """Show a topic's offsets and its first messages with keys and headers."""
    from confluent_kafka import TopicPartition

    # Asking for one topic by name would create it.
    found = _topics(_admin()).get(topic)
    if found is None:
        raise typer.Exit(_complain(f"no topic {topic!r}; ./dev.sh k-list shows them"))
    consumer = _consumer("earliest")
    for partition in sorted(found.partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        print(f"partition {partition}: offsets {low} to {high}")
    consumer.subscribe([topic])
    deadline = time.monotonic() + 10
    while count > 0 and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None or message.error():
            continue
        count -= 1
        headers = {name: _text(value) for name, value in message.headers() or []}
        print(f"\n{message.partition()}:{message.offset()}  key {_text(message.key())}  {headers}")
        print(_text(message.value()))
    consumer.close()


@app.command("mysql-sh", context_settings=_OPEN)
def mysql_sh(arguments: _Arguments = None) -> None:
    """Open the mysql shell as root."""
    _become([*mysql.client_command(), "-h", HOST, "-P", "33306", "-u", "root"], arguments)


@app.command("pg-sh", context_settings=_OPEN)
def pg_sh(arguments: _Arguments = None) -> None:
    """Open psql as the superuser."""
    _become(["psql", "-h", HOST, "-p", "35432", "-U", "postgres"], arguments)


@app.command("redis-cli", context_settings=_OPEN)
def redis_cli(arguments: _Arguments = None) -> None:
    """Open redis-cli."""
    _become(["redis-cli", "-p", _REDIS_PORT], arguments)


@app.command("redis-read")
def redis_read(stream: str, count: int = typer.Argument(10)) -> None:
    """Print the first entries of a stream."""
    _become(["redis-cli", "-p", _REDIS_PORT, "XRANGE", stream, "-", "+", "COUNT"], [str(count)])


@app.command("nats-stream-add")
def nats_stream_add(name: str, subjects: list[str]) -> None:
    """Create a JetStream stream that keeps the given subjects."""

    async def create() -> None:
        import nats

        client = await nats.connect(_NATS, allow_reconnect=False)
        await client.jetstream().add_stream(name=name, subjects=subjects)
        await client.close()

    asyncio.run(create())
    print(f"created {name} on {', '.join(subjects)}")


@app.command("nats-sub")
def nats_sub(subject: str) -> None:
    """Print the messages of a subject until interrupted."""

    async def follow() -> None:
        import nats

        client = await nats.connect(_NATS, allow_reconnect=False)
        subscription = await client.subscribe(subject)
        async for message in subscription.messages:
            print(f"{message.subject}\t{_text(message.data)}", flush=True)

    asyncio.run(follow())


def _admin() -> Any:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": _BROKER}, logger=_QUIET)
    _topics(admin)
    return admin


def _topics(admin: Any) -> Any:
    """Return the topics by name, or end with a sentence when there is no broker."""
    try:
        return admin.list_topics(timeout=10).topics
    except Exception as error:
        text = f"no Kafka broker answers at {_BROKER}; start it with ./dev.sh up kafka"
        raise typer.Exit(_complain(text)) from error


def _consumer(start: str) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": _BROKER,
            "group.id": f"dev-sh-{os.getpid()}",
            "enable.auto.commit": False,
            "auto.offset.reset": start,
            "isolation.level": "read_committed",
        },
        logger=_QUIET,
    )


def _text(value: bytes | str | None) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return "-" if value is None else value


def _become(command: list[str], arguments: list[str] | None) -> None:
    if shutil.which(command[0]) is None:
        raise typer.Exit(_complain(f"{command[0]} is missing; ./dev.sh up installs it"))
    os.execvp(command[0], [*command, *(arguments or [])])


def _complain(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    app()
