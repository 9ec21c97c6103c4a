"""Finding a user's function, and telling what went wrong in it."""

import inspect
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import GeneratorType
from typing import Any

from airflow_provider_deltaforge.errors import DeltaForgeError, SpecError
from airflow_provider_deltaforge.processors.bad_rows import RowsError
from airflow_provider_deltaforge.telemetry.redaction import redacted


class UserCode:
    """A user's function or object, ready to be called with one argument.

    Args:
        function: its import path.
        params: keyword arguments of the function, or of the class.

    Raises:
        SpecError: it cannot be imported, or not be called this way.
    """

    def __init__(self, function: str, params: Mapping[str, Any]) -> None:
        self.name = function
        target = self._found()
        self._close: Callable[[], object] | None = None
        if inspect.isclass(target):
            self._accepts(target, "the class", **params)
            made = self._made(target, params)
            self.call: Callable[[Any], Any] = getattr(made, "process", None)  # type: ignore[assignment]
            if not callable(self.call):
                raise SpecError(f"function: {function} is a class without a method 'process'")
            self._accepts(self.call, "its method 'process'", None)
            self._close = getattr(made, "close", None)
        elif callable(target):
            self._accepts(target, "the function", None, **params)
            self.call = partial(target, **params)
        else:
            raise SpecError(f"function: {function} is neither a function nor a class")

    def __call__(self, argument: Any) -> Any:
        """Call it.

        Raises:
            RowsError: it raised something; errors of this package pass as they are.
        """
        try:
            result = self.call(argument)
            return [*result] if isinstance(result, GeneratorType) else result
        except DeltaForgeError:
            raise
        # A sys.exit() would end the thread that carries the stream, unseen.
        except (Exception, SystemExit) as error:
            raise RowsError(f"{type(error).__name__}: {error}", _place(error)) from error

    def close(self) -> None:
        """Close what the user's class holds. Safe to call twice."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def _found(self) -> Any:
        module, _, path = self.name.partition(":")
        try:
            found: Any = import_module(module)
        except ModuleNotFoundError as error:
            where = (
                "put it on PYTHONPATH, or send it along with spark-submit's --py-files"
                if f"{module}.".startswith(f"{error.name}.")
                else f"{module} imports it"
            )
            raise SpecError(
                f"function: no module {error.name!r} where the stream runs; {where}"
            ) from error
        except (Exception, SystemExit) as error:
            raise SpecError(
                f"function: importing {module} failed: {_described(error)}{_place(error)}"
            ) from error
        for part in path.split("."):
            if not hasattr(found, part):
                raise SpecError(f"function: {module} ({found!r:.100}) has no {path!r}")
            found = getattr(found, part)
        return found

    def _made(self, target: type, params: Mapping[str, Any]) -> Any:
        try:
            return target(**params)
        except DeltaForgeError:
            raise
        except (Exception, SystemExit) as error:
            raise SpecError(
                f"function: making {self.name} failed: {_described(error)}{_place(error)}"
            ) from error

    def _accepts(self, target: Callable[..., Any], what: str, *args: Any, **params: Any) -> None:
        try:
            signature = inspect.signature(target)
        except (TypeError, ValueError):  # Some that are written in C have none.
            return
        try:
            signature.bind(*args, **params)
        except TypeError as error:
            how = " with one argument" if args else ""
            raise SpecError(
                f"function: {what} {self.name}{signature} cannot be called{how} and the params "
                f"given: {error}"
            ) from error


def _described(error: BaseException) -> str:
    return redacted(f"{type(error).__name__}: {error}"[:1000])


def _place(error: BaseException) -> str:
    """Return where the innermost frame stands."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
