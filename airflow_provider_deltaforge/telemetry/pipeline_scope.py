"""For which pipeline a thread works, in a process that runs several of them.

What such a thread logs, and each thread that it starts, belongs to the pipeline: also threads of
libraries. So threads inherit the scope of the one that starts them, as they do by an option of
Python from 3.14 on.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

LOG_FILE = "driver.log"
"""In the directory of a driver's job: everything that the driver logs."""

_ATTRIBUTE = "_deltaforge_scope"
_RECENT_MAX = 300

_installing = threading.Lock()


class RecentLines:
    """The last lines that were logged, as they were printed."""

    def __init__(self) -> None:
        self.count = 0
        """Of lines, ever."""
        self._lines: deque[str] = deque(maxlen=_RECENT_MAX)

    def add(self, text: str) -> str:
        """Remember a text of one or more lines, and return it."""
        for line in text.splitlines():
            self._lines.append(line)
            self.count += 1
        return text

    def lines(self) -> list[str]:
        """Return them, oldest first."""
        return list(self._lines.copy())


@dataclass(frozen=True, slots=True)
class PipelineScope:
    """One pipeline among those of a process.

    Attributes:
        fields: in every line that is logged for it.
        directory: of its driver's job, where its log file is; None: it has none.
        recent: what was logged for it of late.
    """

    fields: Mapping[str, str]
    directory: Path | None = None
    recent: RecentLines = field(default_factory=RecentLines)

    def add(self, line: str) -> None:
        """Remember a line, and write it to the pipeline's file; a full disk must not stop it."""
        self.recent.add(line)
        if self.directory is None:
            return
        with suppress(OSError), (self.directory / LOG_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def present_scope() -> PipelineScope | None:
    """Return the scope of the calling thread; None where a process has one pipeline only."""
    return getattr(threading.current_thread(), _ATTRIBUTE, None)


@contextmanager
def working_for(scope: PipelineScope | None) -> Iterator[None]:
    """Work for a pipeline in this thread, and in those that it starts, while the block runs."""
    _let_threads_inherit()
    thread = threading.current_thread()
    former = present_scope()
    setattr(thread, _ATTRIBUTE, scope)
    try:
        yield
    finally:
        setattr(thread, _ATTRIBUTE, former)


def _let_threads_inherit() -> None:
    with _installing:
        if not getattr(threading.Thread.start, _ATTRIBUTE, False):
            threading.Thread.start = _inheriting(  # type: ignore[method-assign,assignment]
                threading.Thread.start
            )


def _inheriting(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @wraps(start)
    def start_in_scope(self: threading.Thread, *args: Any, **kwargs: Any) -> None:
        scope = present_scope()
        if scope is not None:
            setattr(self, _ATTRIBUTE, scope)
        start(self, *args, **kwargs)

    setattr(start_in_scope, _ATTRIBUTE, True)
    return start_in_scope
