"""The persistence borders: every place where a kill could lose, repeat or reorder something.

A border is crossed with ``crossing(Border.X)``. In production that costs one comparison. A test
sets ``DELTAFORGE_HOLD_AT="sink_written:3:/tmp/held"``: the third crossing writes the process id
into that file and waits until the file says "go", so that the test can kill any process it likes
exactly there. A file that exists already means the hold has happened, in any process. With
``DELTAFORGE_HOLD_AT="@/tmp/next"`` each process reads the same from that file when it starts.
"""

import os
import time
from enum import Enum
from pathlib import Path

HOLD_VARIABLE = "DELTAFORGE_HOLD_AT"
_HOLD_S = 60.0
_POLL_S = 0.02


class CrashPoint(Enum):
    """Where the durable state of source, sink and store can differ."""

    START_POSITION_STORED = "start_position_stored"
    SCHEMA_REGISTERED = "schema_registered"
    BATCH_RENDERED = "batch_rendered"
    SINK_WRITTEN = "sink_written"
    CHECKPOINT_STORED = "checkpoint_stored"
    DEAD_LETTERS_STORED = "dead_letters_stored"
    SINK_LEFT = "sink_left"
    CAUGHT_UP_WRITTEN = "caught_up_written"
    CAUGHT_UP_STORED = "caught_up_stored"
    SINK_JOINED = "sink_joined"
    SINK_GIVEN_UP = "sink_given_up"
    SINK_RESUMED = "sink_resumed"
    SOURCE_ACKNOWLEDGED = "source_acknowledged"
    SNAPSHOT_STARTED = "snapshot_started"
    CHUNK_RENDERED = "chunk_rendered"
    CHUNK_WRITTEN = "chunk_written"
    CHUNK_STORED = "chunk_stored"
    SNAPSHOT_FINISHED = "snapshot_finished"
    REQUEST_RECORDED = "request_recorded"
    REQUEST_REMOVED = "request_removed"
    REPLAY_WRITTEN = "replay_written"
    REPLAY_STORED = "replay_stored"
    REPLAY_REMOVED = "replay_removed"


class _Hold:
    """The one hold a test asked for, read once per process."""

    def __init__(self, asked: str) -> None:
        border, crossings, path = asked.split(":", 2)
        self.border = CrashPoint(border)
        self.crossings = int(crossings)
        self.path = Path(path)

    def cross(self) -> None:
        self.crossings -= 1
        if self.crossings != 0:
            return
        try:
            with self.path.open("x") as held:
                held.write(str(os.getpid()))
        except FileExistsError:
            return
        deadline = time.monotonic() + _HOLD_S
        while self.path.read_text() != "go" and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def asked_hold() -> _Hold | None:
    """Read what hold a test asks of this process."""
    asked = os.environ.get(HOLD_VARIABLE)
    if asked and asked.startswith("@"):
        asked = Path(asked[1:]).read_text()
    return _Hold(asked) if asked else None


_hold = asked_hold()


def crossing(border: CrashPoint) -> None:
    """Say that the code stands at ``border`` now."""
    if _hold is not None and _hold.border is border:
        _hold.cross()
