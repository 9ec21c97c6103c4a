"""Kernels: functions over whole columns that run as machine code.

A kernel's code comes from a library of kernels, which ``deltaforge precompile`` makes: an extension
module that needs no compiler in the process that loads it. What no library has, numba compiles at
the first call (``jit.py``); importing it costs half a second of a core and 100 MiB.

A library is used for what has not changed since: for each kernel it names a stamp of all the files
whose code and constants the machine code holds. It also names the types of the arguments, and is
never called with others. Libraries lie in ``NUMBA_CACHE_DIR`` if that is set, beside the package
and in the user's cache directory, and are looked for in this order.
"""

import hashlib
import json
import logging
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property, update_wrapper
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from airflow_provider_deltaforge.columns.kept_code import library_places, stamp_of

_log = logging.getLogger(__name__)

_ARRAY_FLAGS = 0x501
"""Of ``ndarray.flags``: C-contiguous, aligned, writable."""
_INT64 = 1 << 63

Kinds = tuple[Any, ...]
"""Of each argument what its machine code depends on."""


class Kernel:
    """A function that runs as machine code, without the interpreter lock.

    Args:
        function: in the part of Python that numba compiles.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function
        self._code: dict[Kinds, Callable[..., Any]] = {}
        _kernels.append(self)

    def __call__(self, *arguments: Any) -> Any:
        """Run it; arguments go by position only."""
        kinds = _kinds(arguments)
        code = self._code.get(kinds)
        if code is None:
            code = self._code[kinds] = self._found(kinds, arguments)
        return code(*arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """What compiles it in this process."""
        from airflow_provider_deltaforge.columns import jit

        return jit.dispatcher(self.function)

    @property
    def name(self) -> str:
        """Of the module and in it."""
        return f"{self.function.__module__}:{self.function.__name__}"

    @property
    def stamp(self) -> str:
        """Of the files that its code comes from."""
        return stamp_of(self.function.__code__.co_filename)

    @property
    def _numba_type_(self) -> Any:
        """How numba finds what one kernel calls another by."""
        return self.dispatcher._numba_type_

    def _found(self, kinds: Kinds, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        with _lock:  # A library is loaded once.
            for calls in _recorders:
                calls.append((self, kinds_text(kinds), arguments))
            for library in () if _recorders else libraries():
                code = library.code(self, kinds)
                if code is not None:
                    return code
            if libraries() and not _recorders:
                _log.info(
                    "kernel %s is compiled in this process, which takes up to 100 MiB: no library "
                    "has it for such arguments; run `deltaforge precompile`",
                    self.name,
                )
            return self.dispatcher  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Look for its code again at the next call."""
        self._code.clear()


def kernel(function: Callable[..., Any]) -> Any:
    """Return a function as a kernel, which looks like it to Python and to other kernels."""
    return Kernel(function)


_kernels: list[Kernel] = []
_lock = threading.Lock()


class Intrinsic:
    """An instruction that kernels may use, and that Python lacks.

    Args:
        define: returns numba's own intrinsic; called when a kernel that uses it is compiled.
    """

    def __init__(self, define: Callable[[], Any]) -> None:
        self._define = define

    @cached_property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        defined = self._define()
        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(defined)


Call = tuple[Kernel, str, tuple[Any, ...]]
_recorders: list[list[Call]] = []


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Compile in this process; note the first call of each kernel with arguments of each kind."""
    calls: list[Call] = []
    _recorders.append(calls)
    _forget_all()
    try:
        yield calls
    finally:
        _recorders.remove(calls)
        _forget_all()


def _forget_all() -> None:
    for known in _kernels:
        known.forget()


class Library:
    """An extension module with the code of kernels, and the text file that says what it has.

    Args:
        manifest: the text file.
    """

    def __init__(self, manifest: Path) -> None:
        self._manifest = manifest

    def code(self, asked: Kernel, kinds: Kinds) -> Callable[..., Any] | None:
        """Return the code for such arguments, or None where it has none that can be used."""
        entry = self._kernels.get(asked.name)
        if entry is None or entry["stamp"] != asked.stamp:
            return None
        symbol = entry["code"].get(kinds_text(kinds))
        return getattr(self._module, symbol) if symbol and self._module else None

    @cached_property
    def _content(self) -> Mapping[str, Any]:
        try:
            return json.loads(self._manifest.read_text())  # type: ignore[no-any-return]
        except (OSError, ValueError):
            return {}

    @property
    def _kernels(self) -> Mapping[str, Any]:
        return self._content.get("kernels", {})  # type: ignore[no-any-return]

    @cached_property
    def _module(self) -> Any:
        """The extension module, or None where it cannot be loaded here."""
        name, file = self._content["module"], self._manifest.parent / self._content["file"]
        if not _is_whole(file):  # Loaded all the same, half a file ends the process later.
            return None
        spec = spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))
        if spec is None or spec.loader is None:
            return None
        try:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError:
            return None
        return module


def library_file(name: str, content: bytes) -> str:
    """Return the name of a library's file, which tells its content."""
    digest = hashlib.sha256(content).hexdigest()[:16]
    return f"{name}-{digest}{manifest_suffix().removesuffix('.json')}.so"


def _is_whole(file: Path) -> bool:
    try:
        content = file.read_bytes()
    except OSError:
        return False
    return library_file(file.name.partition("-")[0], content) == file.name


@cache
def libraries() -> tuple[Library, ...]:
    """Return the libraries that may be used, in their order."""
    pattern = f"*{manifest_suffix()}"
    return tuple(
        Library(file) for place in library_places() for file in sorted(place.glob(pattern))
    )


def manifest_suffix() -> str:
    """Return how the text files of this Python's libraries end."""
    return f".{sysconfig.get_config_var('SOABI')}.json"


def kinds_text(kinds: Kinds) -> str:
    """Return kinds as manifests name them."""
    return ", ".join(map(_kind_text, kinds))


def _kinds(values: tuple[Any, ...]) -> Kinds:
    """Return the kind of each value; no call for each array, which are many in a small batch."""
    array = np.ndarray
    return tuple(
        [
            (each.dtype, each.ndim, each.flags.num & _ARRAY_FLAGS)
            if type(each) is array
            else _kind(each)
            for each in values
        ]
    )


def _kind(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        return int if -_INT64 <= value < _INT64 else np.uint64
    if issubclass(kind, tuple):
        return kind, _kinds(value)
    return kind


def _kind_text(kind: Any) -> str:
    if isinstance(kind, type):
        return f"{kind.__module__}.{kind.__qualname__}"
    if len(kind) == 2:
        return f"{_kind_text(kind[0])}({kinds_text(kind[1])})"
    dtype, dimensions, flags = kind
    return f"{dtype.descr if dtype.names else dtype.str}[{dimensions}:{flags:x}]"
