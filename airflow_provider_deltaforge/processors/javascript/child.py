"""The interpreter's own process: V8, the glue and one script. Run by path, never imported.

It imports the standard library and ``py_mini_racer`` alone. Frames arrive on standard input and
answers leave on what was standard output; when its parent is gone, it ends.
"""

import json
import os
import re
import resource
import signal
import struct
import sys
from typing import Any

HEAD = struct.Struct("<BII")
ANSWER = struct.Struct("<BI")
LOAD, RUN, RESET = range(3)
DONE, FAILED = range(2)

_SPARE = 64 << 20
"""What Python and V8 may take beside the script's own memory."""
_PLACE = re.compile(r"(?:<anonymous>|script\.js):(\d+)(?::(\d+))?")
_EXPORT = re.compile(r"^export(?=\s+(?:function|const|let|var)\s+processBatch\b)", re.MULTILINE)
_LATER = re.compile(r"\b(?:Promise|async|await|then)\b")
_ENTRY = "typeof processBatch === 'function' ? processBatch : undefined"


class ScriptRefused(Exception):  # noqa: N818 - nothing went wrong here
    """The script cannot be used; the argument is a JSON object."""


class Isolate:
    """One V8 with the glue and the script loaded."""

    def __init__(self, glue: str, patience: float) -> None:
        from py_mini_racer import MiniRacer

        self._racer = MiniRacer()
        self._patience = patience
        doors: Any = self._racer.eval(glue)
        self._run, self._load, self._reserve = doors["run"], doors["load"], doors["reserve"]
        self._desk = doors["desk"]
        self._room = self._reserved(1 << 16)
        self._drains = False

    def room(self, size: int) -> memoryview:
        """Return where the numbers of the next batch are to be laid."""
        if size > len(self._room):
            self._room = self._reserved(2 * size)
        return self._room[:size]

    def enter(self, script: str) -> str:
        """Run the script, and return what it logged on the way.

        Raises:
            Refused: it does not compile, throws, or is neither form of a processor.
        """
        from py_mini_racer import JSEvalException, JSFunction, JSParseException, JSTimeoutException

        self._drains = _LATER.search(script) is not None
        script = _EXPORT.sub("      ", script)
        try:
            value = self._value(script)
            whole = self._racer.eval(_ENTRY, timeout_sec=self._patience)
        except JSParseException as error:
            raise ScriptRefused({"why": "parse", **_parse_error(str(error))}) from None
        except JSTimeoutException:
            raise ScriptRefused({"why": "slow"}) from None
        except JSEvalException as error:
            raise ScriptRefused({"why": "threw", **_thrown(str(error))}) from None
        if isinstance(whole, JSFunction):
            return self._loaded(whole, per_event=False)
        if isinstance(value, JSFunction):
            return self._loaded(value, per_event=True)
        raise ScriptRefused({"why": "entry"})

    def _loaded(self, entry: Any, *, per_event: bool) -> str:
        self._desk["entry"] = entry
        self._desk["perEvent"] = per_event
        return str(self._load())

    def _reserved(self, size: int) -> memoryview:
        self._desk["size"] = size
        room: memoryview = self._reserve()
        return room

    def _value(self, script: str) -> Any:
        from py_mini_racer import JSParseException

        name = "\n//# sourceURL=script.js"
        try:
            return self._racer.eval(script + name, timeout_sec=self._patience)
        except JSParseException:
            try:  # `function (event) {...}` is a value only in parentheses.
                return self._racer.eval(f"({script}\n){name}", timeout_sec=self._patience)
            except JSParseException:
                pass
            raise

    def run(self, text: str) -> str:
        """Hand over a batch whose numbers are in the room, and return what the glue wrote."""
        self._desk["text"] = text
        answer = str(self._run(timeout_sec=self._patience))
        if self._drains:  # What promises do after the call belongs to the call.
            self._racer.eval("0", timeout_sec=self._patience)
        return answer

    def close(self) -> None:
        """Release V8."""
        self._run = self._load = self._reserve = self._desk = None
        self._racer.close()


class Host:
    """One isolate after the other, as a parent asks for them."""

    def __init__(self, frames: int, memory: int) -> None:
        self._frames = frames
        self._memory = memory
        self._isolate: Isolate | None = None
        self._asked: dict[str, Any] = {}
        self._letters = bytearray()
        self._bounded = False

    def answer(self, kind: int, column_bytes: int, text_bytes: int) -> tuple[int, str]:
        """Read the rest of a frame and do what it asks.

        Raises:
            EOFError: nobody writes any more.
        """
        from py_mini_racer import JSEvalException

        unread = column_bytes + text_bytes
        try:
            columns = memoryview(b"") if self._isolate is None else self._isolate.room(column_bytes)
            text = self._room(text_bytes)
            fill(self._frames, columns)
            fill(self._frames, text)
            unread = 0
            if kind == RUN and self._isolate is not None:
                return DONE, self._isolate.run(str(text, "utf-8"))
            if kind == LOAD:
                self._asked = json.loads(bytes(text))
            return DONE, self._entered()
        except ScriptRefused as refusal:
            return FAILED, json.dumps(refusal.args[0])
        except JSEvalException as error:
            fill(self._frames, memoryview(bytearray(unread)))
            return FAILED, json.dumps({"why": "glue", "text": str(error)[:2000]})

    def _room(self, size: int) -> memoryview:
        if size > len(self._letters):
            self._letters = bytearray(size)
        return memoryview(self._letters)[:size]

    def _entered(self) -> str:
        if self._isolate is not None:
            self._isolate.close()
        self._isolate = Isolate(self._asked["glue"], self._asked["patience"])
        if not self._bounded:
            _bound(self._memory << 20)
            self._bounded = True
        return self._isolate.enter(self._asked["script"])


def main() -> None:
    """Serve frames until there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    frames, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.path.append(sys.argv[1])
    memory = int(sys.argv[2])

    from py_mini_racer import init_mini_racer

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    init_mini_racer(flags=("--single-threaded", f"--max-heap-size={memory}"))
    host = Host(frames, memory)
    head = memoryview(bytearray(HEAD.size))
    try:
        while True:
            fill(frames, head)
            status, answer = host.answer(*HEAD.unpack(head))
            payload = answer.encode()
            _send(answers, ANSWER.pack(status, len(payload)) + payload)
    except EOFError:
        # Not through the interpreter's end: it would wait for V8's threads.
        os._exit(0)


def fill(frames: int, room: memoryview) -> None:
    """Read as much as there is room for.

    Raises:
        EOFError: nobody writes any more.
    """
    while room:
        count = os.readv(frames, [room])
        if not count:
            raise EOFError
        room = room[count:]


def _send(answers: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(answers, left) :]


def _bound(memory: int) -> None:
    """Have the kernel refuse memory outside V8's heap, such as array buffers."""
    try:
        with open("/proc/self/status", encoding="ascii") as lines:  # noqa: PTH123 - lean
            used = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))
    except (OSError, StopIteration):
        return
    limit = used + memory + _SPARE
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _parse_error(text: str) -> dict[str, Any]:
    lines = text.split("\n")
    found = _PLACE.match(lines[0])
    caret = next((line.index("^") + 1 for line in lines[1:] if line.strip("^ ") == "" and line), 1)
    message = lines[0].partition(": ")[2]
    return {"line": int(found.group(1)) if found else 1, "column": caret, "text": message}


def _thrown(text: str) -> dict[str, Any]:
    place = re.search(r"script\.js:(\d+):(\d+)", text) or _PLACE.match(text)
    line, column = (int(part or 1) for part in place.groups()) if place else (1, 1)
    return {"line": line, "column": column, "text": text.partition("\n")[0].partition(": ")[2]}


if __name__ == "__main__":
    main()
