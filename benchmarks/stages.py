"""The stages of a drain measured alone, in this process, for comparison with the whole."""

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.sinks.kafka import KafkaSink
from airflow_provider_deltaforge.sources.contract import Source

_BATCH = 16_000


def measure(source: Source, start: Any, brokers: str) -> dict[str, dict[str, float]]:
    """Read, decode, render and produce one after the other; rows/s and CPU s per million."""
    end = source.head()
    chunks, read = _timed(lambda: _read(source, start, end))
    reader = source.open(start)
    reader.decode(chunks[0])  # Compiled kernels are loaded once per process.
    batches, decode = _timed(lambda: [reader.decode(chunk) for chunk in chunks])
    reader.close()
    rows = sum(batch.rows.num_rows for batch in batches)
    sink = KafkaSink(id="stage", brokers=brokers, topic=f"stage-{source.connector}")
    renderer = Renderer(sink, Origin("bench", "bench", source.connector, "0"))
    parts = [
        batch.rows.slice(at, _BATCH)
        for batch in batches
        for at in range(0, batch.rows.num_rows, _BATCH)
    ]
    rendered, render = _timed(lambda: [renderer.render(part)[0] for part in parts])
    log_bytes = sum(chunk.nbytes for chunk in chunks)
    writer = sink.open("bench")
    _, deliver = _timed(lambda: [_write(writer, messages) for messages in rendered])
    writer.close()
    _, bare = _timed(lambda: _bare(brokers, f"bare-{source.connector}", rendered))
    stages = {
        "read": read,
        "decode": decode,
        "render": render,
        "sink": deliver,
        "bare producer": bare,
    }
    return {
        name: {
            "rows_per_s": round(rows / wall),
            "log_mb_per_s": round(log_bytes / wall / 1e6, 1),
            "cpu_s_per_million": round(cpu / rows * 1e6, 3),
        }
        for name, (wall, cpu) in stages.items()
    }


def _write(writer: Any, messages: Any) -> None:
    assert not writer.write(messages)


def _read(source: Source, start: Any, end: Any) -> list[Any]:
    reader = source.open(start)
    chunks: list[Any] = []
    try:
        while not chunks or source.compare(chunks[-1].end, end) < 0:
            chunk = reader.read(1.0)
            if chunk is not None:
                chunks.append(chunk)
    finally:
        reader.close()
    return chunks


def _bare(brokers: str, topic: str, rendered: list[Any]) -> None:
    producer = Producer(
        {
            "bootstrap.servers": brokers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "batch.size": 1_048_576,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for messages in rendered:
        values, keys = messages.values.to_pylist(), messages.keys.to_pylist()
        for key, value in zip(keys, values, strict=True):
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    producer.flush()


def _timed(work: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, (time.perf_counter() - wall, time.process_time() - cpu)
