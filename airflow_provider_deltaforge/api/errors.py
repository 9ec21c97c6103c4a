"""Errors of the REST API: one body for all of them, ``{"error", "code", "message"}``.

``error`` and ``message`` hold the same sentence, for clients of either generation of the API; no
sentence holds a secret, and none of an unforeseen error leaves this process.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    FatalError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

_log = logging.getLogger(__name__)

_OF_ERRORS: tuple[tuple[type[DeltaForgeError], int, str], ...] = (
    (SpecError, 400, "INVALID_REQUEST"),
    (RetryableError, 503, "TRY_AGAIN"),
    (FatalError, 502, "REFUSED"),
)
_OF_STATUS = {
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "TOO_LARGE",
}


class ApiError(Exception):
    """An answer other than the one that was asked for."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@contextmanager
def answering(status: int, code: str) -> Iterator[None]:
    """Answer a SpecError of the block with this status and code."""
    try:
        yield
    except SpecError as error:
        raise ApiError(status, code, redacted(str(error))) from error


def body(code: str, message: str) -> dict[str, str]:
    """Return the body of an error."""
    return {"error": message, "code": code, "message": message}


def install(app: Any) -> None:
    """Make a FastAPI application answer every error with the one body."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    def on(kind: type[Exception], found: Callable[[Any], tuple[int, str, str]]) -> None:
        from fastapi.responses import JSONResponse

        def answer(_: object, error: Exception) -> JSONResponse:
            status, code, message = found(error)
            return JSONResponse(body(code, message), status)

        app.add_exception_handler(kind, answer)

    on(ApiError, lambda error: (error.status, error.code, str(error)))
    on(DeltaForgeError, _of_error)
    on(RequestValidationError, lambda error: (422, "INVALID_REQUEST", _problems(error.errors())))
    on(HTTPException, _of_http)
    on(Exception, _unforeseen)


def _of_error(error: DeltaForgeError) -> tuple[int, str, str]:
    message = redacted(str(error))
    for kind, status, code in _OF_ERRORS:
        if isinstance(error, kind):
            return status, code, message
    return 500, "INTERNAL_ERROR", message


def _of_http(error: Any) -> tuple[int, str, str]:
    return error.status_code, _OF_STATUS.get(error.status_code, "ERROR"), str(error.detail)


def _unforeseen(error: Exception) -> tuple[int, str, str]:
    _log.error("unforeseen error: %s", redacted(f"{type(error).__name__}: {error}"))
    return 500, "INTERNAL_ERROR", "unforeseen error; the server's log says more"


def _problems(found: list[dict[str, Any]]) -> str:
    """Return what is wrong with a request, without the values that it held."""
    shown = [".".join(str(part) for part in problem["loc"]) for problem in found]
    texts = [f"{where}: {problem['msg']}" for where, problem in zip(shown, found, strict=True)]
    return redacted("; ".join(texts))
