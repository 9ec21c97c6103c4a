"""The crash points: every place where a kill could lose, repeat or reorder something.

Code calls ``reach(CrashPoint.X)`` there. In production that costs one comparison. A test sets
``DELTAFORGE_HOLD_AT="sink_written:3:/tmp/held"``: the third time, the process writes its id
into that file and waits until the file says "go", so that the test can kill any process it likes
exactly there. A file that exists already means the hold has happened, in any process. With
``DELTAFORGE_HOLD_AT="@/tmp/next"`` each process reads the same from that file when it starts, and a
worker process of Spark for each task that it is given.
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
    PART_WRITTEN = "part_written"
    SINK_WRITTEN = "sink_written"
    CHECKPOINT_STORED = "checkpoint_stored"
    DEAD_LETTERS_STORED = "dead_letters_stored"
    SINK_LEFT = "sink_left"
    CAUGHT_UP_WRITTEN = "caught_up_written"
    CAUGHT_UP_STORED = "caught_up_stored"
    SINK_JOINED = "sink_joined"
    SINK_GIVEN_UP = "sink_given_up"
    SINK_RESUMED = "sink_resumed"
    REWIND_STORED = "rewind_stored"
    REWIND_ASKED = "rewind_asked"
    REWIND_ADOPTED = "rewind_adopted"
    REWIND_ENDED = "rewind_ended"
    SOURCE_ACKNOWLEDGED = "source_acknowledged"
    ARCHIVE_BEGUN = "archive_begun"
    ARCHIVE_OPENED = "archive_opened"
    ARCHIVE_FILE_UNFINISHED = "archive_file_unfinished"
    ARCHIVE_FILES_WRITTEN = "archive_files_written"
    ARCHIVE_STORED = "archive_stored"
    ARCHIVE_OLD_DELETED = "archive_old_deleted"
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
        crash_point, nth, path = asked.split(":", 2)
        self.crash_point = CrashPoint(crash_point)
        self.nth = int(nth)
        self.path = Path(path)

    def reach(self) -> None:
        self.nth -= 1
        if self.nth != 0:
            return
        try:
            with self.path.open("x") as held:
                held.write(str(os.getpid()))
        except FileExistsError:
            return
        deadline = time.monotonic() + _HOLD_S
        while self.path.read_text() != "go" and time.monotonic() < deadline:
            time.sleep(_POLL_S)


_holds: dict[CrashPoint, _Hold] = {}


def arm() -> None:
    """Read what hold a test asks of this process: at its start, and after a fork."""
    _holds.clear()
    asked = os.environ.get(HOLD_VARIABLE)
    if asked and asked.startswith("@"):
        asked = Path(asked[1:]).read_text()
    if asked:
        hold = _Hold(asked)
        _holds[hold.crash_point] = hold


arm()


def arm_again() -> None:
    """Read anew what a file asks for, in a process that begins with something else."""
    if os.environ.get(HOLD_VARIABLE, "").startswith("@"):
        arm()


def reach(crash_point: CrashPoint) -> None:
    """Note that the code is at this point now; a test may ask to be held there."""
    if _holds and crash_point in _holds:
        _holds[crash_point].reach()
