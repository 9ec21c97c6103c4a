"""What the processes of a pipeline log: a line for each thing that happened, as text or JSON.

Every line carries the fields that its process was given (pipeline, tenant) and those of the call
(``extra``), in either format, and no secret. As text, a line break in a message is escaped: what
a client, a row or a script wrote must not look like a line of ours. The same line comes at most
once a minute; the next one that is printed says how many were left out.
"""

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, TextIO

import orjson

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.telemetry.pipeline_scope import RecentLines, present_scope
from airflow_provider_deltaforge.telemetry.redaction import redacted

LEVELS = "DELTAFORGE_LOG"
"""Environment variable: a level, and levels of single loggers, as ``warning,sinks=debug``."""
FORMAT = "DELTAFORGE_LOG_FORMAT"
"""Environment variable: ``text`` or ``json``."""

FORMATS = ("text", "json")

_PACKAGE = "airflow_provider_deltaforge"
_OTHERS = {"message", "asctime", "taskName", "color_message"}
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | _OTHERS
_REPEAT_S = 60.0
_LINES_MAX = 1000
_QUIET = ("py4j",)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_NUMBERS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


def configure(
    fields: Mapping[str, str], *, stream: TextIO | None = None, level: str = "info"
) -> None:
    """Make this process log to standard error, as the environment asks for.

    Args:
        fields: in every line of this process, such as ``pipeline`` and ``tenant``.
        stream: in place of standard error.
        level: where the environment names none.

    Raises:
        SpecError: a variable of the environment is wrong.
    """
    form = os.environ.get(FORMAT) or "text"
    if form not in FORMATS:
        raise SpecError(f"{FORMAT}: write {' or '.join(FORMATS)}, not {form!r}")
    levels = levels_of(os.environ.get(LEVELS) or level)
    handler = _Printed(stream) if stream is not None else _StandardError()
    handler.setFormatter(_Json(fields) if form == "json" else _Text(fields))
    handler.addFilter(RepeatedLines())
    logging.basicConfig(handlers=[handler], force=True, level=levels.pop(""))
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name, number in levels.items():
        logging.getLogger(name).setLevel(number)


def levels_of(text: str) -> dict[str, int]:
    """Return levels by the name of a logger; the root's, under an empty name, is always there.

    Args:
        text: ``debug``, or ``warning,sinks.kafka=debug``: a name without the package's is its own.

    Raises:
        SpecError: there is no such level.
    """
    levels = {"": logging.INFO}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, word = part.rpartition("=")
        number = _NUMBERS.get(word.strip().lower())
        if number is None:
            raise SpecError(f"{LEVELS}: {word.strip()!r} is no level; write debug, info, warning …")
        is_ours = separator and not name.startswith(_PACKAGE)
        levels[f"{_PACKAGE}.{name.strip()}" if is_ours else name.strip()] = number
    return levels


RECENT = RecentLines()
"""What this process logs that is of no pipeline of its own."""


def recent_lines() -> RecentLines:
    """Return the last lines of the calling thread's pipeline, or of the whole process."""
    scope = present_scope()
    return scope.recent if scope is not None else RECENT


class _Printed(logging.StreamHandler):  # type: ignore[type-arg]  # not in Python 3.10
    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and remember it; a pipeline's is written to its own file as well."""
        line = super().format(record)
        scope = present_scope()
        if scope is None:
            RECENT.add(line)
        else:
            scope.add(line)
        return line


class _StandardError(_Printed):
    """Writes to what is standard error at that moment."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        """Where the next line goes."""
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        """Stays what it is."""


class RepeatedLines(logging.Filter):
    """Lets the same line pass once in a while, with how often it came meanwhile.

    Args:
        every_s: seconds between two of them.
        clock: seconds that only ever grow.
    """

    def __init__(
        self, every_s: float = _REPEAT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._every_s = every_s
        self._clock = clock
        self._shown: dict[tuple[Any, ...], tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is printed."""
        of_pipeline = tuple(_fields_of_scope().values())
        line = (
            *of_pipeline,
            record.name,
            record.levelno,
            record.getMessage(),
            repr(_extra(record)),
        )
        now = self._clock()
        with self._lock:
            shown_s, left_out = self._shown.pop(line, (None, 0))
            if shown_s is not None and now - shown_s < self._every_s:
                self._shown[line] = (shown_s, left_out + 1)
                return False
            self._shown[line] = (now, 0)
            while len(self._shown) > _LINES_MAX:
                del self._shown[next(iter(self._shown))]
        if left_out:
            record.repeated = left_out + 1
        return True


class SeveralLines(str):
    """An argument of a message that keeps its line breaks: places in code, never data."""

    __slots__ = ()


class _Text(logging.Formatter):
    """``2026-11-23T15:00:00.123Z WARNING engine.lane: text key=value``, then a traceback."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__()
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without secrets."""
        name = record.name.removeprefix(f"{_PACKAGE}.")
        shown = {**self._fields, **_fields_of_scope(), **_extra(record)}
        words = "".join(f" {key}={_word(value)}" for key, value in shown.items())
        line = f"{_time(record)} {record.levelname} {name}: {_message(record)}{words}"
        trace = _trace(self, record)
        return redacted(f"{line}\n{trace}" if trace else line)


class _Json(logging.Formatter):
    """One object a line; fields of ours never take the place of time, level, logger or message."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__()
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without secrets."""
        trace = _trace(self, record)
        line = {
            **self._fields,
            **_fields_of_scope(),
            **_extra(record),
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({"traceback": trace} if trace else {}),
        }
        return orjson.dumps({key: _plain(value) for key, value in line.items()}).decode()


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _KNOWN}


def _fields_of_scope() -> Mapping[str, str]:
    scope = present_scope()
    return scope.fields if scope is not None else {}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _message(record: logging.LogRecord) -> str:
    text = _escaped(record.getMessage())
    for argument in record.args if isinstance(record.args, tuple) else ():
        if isinstance(argument, SeveralLines):
            text = text.replace(_escaped(argument), argument, 1)
    return text


def _escaped(text: str) -> str:
    """Return text on one line, in which no terminal finds a command."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _word(value: object) -> str:
    text = str(value)
    if not text or set(text) & set(' ="\n'):
        text = orjson.dumps(_plain(text)).decode()
    return _escaped(text)


def _plain(value: object) -> object:
    """Return a value as JSON holds it, without secrets, and with half characters replaced."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return redacted(str(value)).encode(errors="replace").decode()
