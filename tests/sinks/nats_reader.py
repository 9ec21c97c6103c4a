"""An independent reader of NATS, and the commands of people who run it."""

import asyncio
import json
from contextlib import suppress

import nats
import nats.js.errors

_PATIENCE_S = 60


def asked(url, what, **options):
    """Run ``what(client, jetstream)`` on a connection of its own."""

    async def run():
        client = await nats.connect(
            url, allow_reconnect=False, connect_timeout=_PATIENCE_S, **options
        )
        try:
            return await what(client, client.jetstream(timeout=_PATIENCE_S))
        finally:
            await client.close()

    return asyncio.run(run())


def add_stream(url, name, *subjects, login=None, **settings):
    """Make a stream in a file."""

    async def add(_, jetstream):
        await jetstream.add_stream(name=name, subjects=list(subjects), **settings)

    asked(url, add, **(login or {}))


def change_stream(url, name, **settings):
    """Change a stream's settings."""

    async def change(_, jetstream):
        config = (await jetstream.stream_info(name)).config
        await jetstream.update_stream(config.evolve(**settings))

    asked(url, change)


def remove_stream(url, name):
    """Remove a stream, if it is there."""

    async def remove(_, jetstream):
        with suppress(nats.js.errors.NotFoundError):
            await jetstream.delete_stream(name)

    asked(url, remove)


def purge_stream(url, name):
    asked(url, lambda _, jetstream: jetstream.purge_stream(name))


def stored(url, name, login=None):
    """Return the messages of a stream in its order: subject, headers, value."""

    async def read(_, jetstream):
        count = (await jetstream.stream_info(name)).state.messages
        if not count:
            return []
        reading = await jetstream.subscribe(">", stream=name, ordered_consumer=True)
        found = [await reading.next_msg(_PATIENCE_S) for _ in range(count)]
        return [(each.subject, dict(each.headers or {}), each.data) for each in found]

    return asked(url, read, **(login or {}))


def count(url, name):
    """Return how many messages a stream holds."""

    async def ask(_, jetstream):
        return (await jetstream.stream_info(name)).state.messages

    return asked(url, ask)


def values(url, name):
    """Return the values of a stream in its order."""
    return [value for _, _, value in stored(url, name)]


def publish(url, subject, value=b"x", headers=None):
    """Publish as anybody could."""

    async def send(_, jetstream):
        return (await jetstream.publish(subject, value, headers=headers)).seq

    return asked(url, send)


def numbers(found):
    return [json.loads(value)["n"] for value in found]
