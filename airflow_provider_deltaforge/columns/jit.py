"""Compiles kernels while a process runs, for what no library of kernels has, and keeps the code.

numba asks only whether the file of a function itself has changed. A kernel also holds the code and
the constants of every kernel it calls, so ours are kept under a stamp of all these files: an
upgrade never runs on with a mixture of old and new machine code.

The code lies in ``NUMBA_CACHE_DIR`` if that is set, else beside the package, else, where that is
read-only, in the user's cache directory. What is beside a read-only package, as in an archive that
a cluster unpacks, is used all the same. With none of them writable the rest is compiled anew in
every process.
"""

import inspect
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)

from airflow_provider_deltaforge.columns.kept_code import stamp_of

_log = logging.getLogger(__name__)


def dispatcher(function: Callable[..., Any]) -> Any:
    """Return what compiles a function at its first call, without the interpreter lock."""
    compiled = njit(nogil=True, error_model="numpy")(function)
    compiled._cache = _KernelCache(function)  # noqa: SLF001 - what njit(cache=True) does
    return compiled


@cache
def _say_uncached() -> None:
    _log.warning(
        "no directory to keep compiled kernels in: every process compiles them again, which takes "
        "up to a minute; set NUMBA_CACHE_DIR to a writable directory"
    )


class _Stamped:
    _py_file: str

    def get_source_stamp(self) -> str:
        """Return what must be the same for kept machine code to be used."""
        return stamp_of(self._py_file)


class _Configured(_Stamped, UserProvidedCacheLocator):
    pass


class _Beside(_Stamped, InTreeCacheLocator):
    pass


class _OfUser(_Stamped, UserWideCacheLocator):
    pass


class _Nowhere(_Beside):
    """Finds what is kept beside the package, and keeps nothing."""

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_Nowhere":
        return cls(py_func, py_file)


class _KernelCacheImpl(CompileResultCacheImpl):
    _locator_classes = (_Configured, _Beside, _OfUser, _Nowhere)


class _KernelCache(FunctionCache):
    _impl_class = _KernelCacheImpl
    _cache_file: Any

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._place = self._cache_file
        beside = _Nowhere(function, inspect.getfile(function))
        self._beside = IndexDataCacheFile(
            beside.get_cache_path(), self._impl.filename_base, beside.get_source_stamp()
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return kept machine code, or None where there is none that can be used.

        The index names classes of the release that wrote it, and is read before its stamp is.
        """
        try:
            kept = super().load_overload(sig, target_context)
        except (AttributeError, ImportError):
            self.flush()
            kept = None
        except OSError:  # A directory that cannot be read keeps nothing.
            kept = None
        return kept if kept is not None else self._shipped(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, where there is a place for it."""
        if isinstance(self._impl.locator, _Nowhere):
            _say_uncached()
        else:
            super().save_overload(sig, data)

    def flush(self) -> None:
        """Forget what is kept, where it can be forgotten."""
        if not isinstance(self._impl.locator, _Nowhere):
            super().flush()

    def _shipped(self, sig: Any, target_context: Any) -> Any:
        """Return what came beside a package that is read-only."""
        if isinstance(self._impl.locator, _Beside) and not isinstance(self._impl.locator, _Nowhere):
            return None
        self._cache_file = self._beside
        try:
            return super().load_overload(sig, target_context)
        except (AttributeError, ImportError, OSError):
            return None
        finally:
            self._cache_file = self._place
