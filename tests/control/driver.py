"""A driver without Spark: keeps the control record as a real one does, and obeys it.

Run by the local backend in place of ``spark-submit``. ``FAKE_DRIVER`` says how it behaves:
``run`` (heartbeats until asked to end), ``deaf`` (ignores being asked, and SIGTERM), ``mute``
(obeys, without any heartbeat), ``exit:N``, ``fail:CLASS`` (says so and exits with 4),
``fails_slowly`` (says that it has failed, and takes a minute to exit).
"""

import os
import signal
import sys
import time
from argparse import ArgumentParser


def main() -> int:
    behaviour = os.environ.get("FAKE_DRIVER", "run")
    options = ArgumentParser()
    options.add_argument("--pipeline", required=True)
    options.add_argument("--generation", type=int, required=True)
    asked, _ = options.parse_known_args()
    if behaviour.startswith("exit:"):
        return int(behaviour.removeprefix("exit:"))
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("fake driver started", sys.argv[1:], flush=True)
    if os.environ["DELTAFORGE_STORE"].endswith("unused"):
        time.sleep(600)
        return 0
    return drive(asked.pipeline, asked.generation, behaviour)


def drive(pipeline: str, generation: int, behaviour: str) -> int:
    from airflow_provider_deltaforge.errors import FencedError
    from airflow_provider_deltaforge.storage.location import StoreLocation
    from airflow_provider_deltaforge.storage.records.control import Control

    store = StoreLocation.from_dsn(os.environ["DELTAFORGE_STORE"]).create()
    control = Control(store, pipeline)
    try:
        fence = control.take_epoch(f"fake:{os.getpid()}", generation)
    except FencedError as error:
        print(error, flush=True)
        return 4
    events = 0

    def say(status: str, **more: object) -> None:
        store.transact(
            [control.put_progress(progress(status, fence.version, generation, events, **more))],
            fence,
        )

    if behaviour.startswith("fail:"):
        say("failed", error_class=behaviour.removeprefix("fail:"), reason="binlog.000002 is gone")
        return 4
    if behaviour == "fails_slowly":
        say("failed", error_class="access", reason="password refused")
        time.sleep(60)
        return 4
    while True:
        record = control.read()
        leaving = record is None or record.desired == "stopped" or record.generation != generation
        if leaving and behaviour != "deaf":
            say("stopped")
            return 0
        if behaviour != "mute":
            events += 1
            say("paused" if record.desired == "paused" else "running")
        time.sleep(0.1)


def progress(status: str, epoch: int, generation: int, events: int, **more: object) -> object:
    from airflow_provider_deltaforge.storage import moments
    from airflow_provider_deltaforge.storage.records.control import Progress

    now_ms = int(time.time() * 1000)
    more.setdefault("boot", moments.boot())
    return Progress(
        status=status,
        since_ms=now_ms,
        epoch=epoch,
        generation=generation,
        heartbeat_at_ms=now_ms,
        beat=events,
        beat_s=moments.now(),
        events=events,
        position={"file": "binlog.000001", "pos": 4 + events},
        lag_ms=12,
        sinks={"files": {"events": events, "bytes": events * 100}},
        tables={"shop.orders": {"events": {"c": events}}},
        pid=os.getpid(),
        **more,
    )


if __name__ == "__main__":
    sys.exit(main())
