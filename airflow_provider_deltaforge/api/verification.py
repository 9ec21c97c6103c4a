"""Routes of verifications: does a sink hold what the source's tables do."""

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from airflow_provider_deltaforge.api.access import Caller
from airflow_provider_deltaforge.api.bodies import RequestBody
from airflow_provider_deltaforge.api.context import ApiContext, require_pipeline
from airflow_provider_deltaforge.api.errors import ApiError, answering
from airflow_provider_deltaforge.control import verification
from airflow_provider_deltaforge.control.verification import VerificationRunningError
from airflow_provider_deltaforge.engine.verify.options import VerifyOptions
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.verifications import Verification

_WAIT_S, _WAIT_MOST_S = 60, 3600


class VerificationWish(RequestBody):
    """What to verify: every captured table, or some of them, in every sink or some."""

    tables: list[str] = Field(default_factory=list)
    sinks: list[str] = Field(default_factory=list)
    wait_secs: int = Field(default=_WAIT_S, ge=0, le=_WAIT_MOST_S)
    """How long a sink's checkpoint may take to reach the log's end."""


def routes(context: ApiContext) -> APIRouter:
    """Return the router of ``/pipelines/{name}/verify``."""
    router = APIRouter(prefix="/pipelines/{name}/verify", tags=["verification"])
    may_read_rows, may_operate = context.requires("read_rows"), context.requires("operate")

    @router.get("", dependencies=[may_read_rows])
    def list_verifications(name: str) -> dict[str, Any]:
        """Return the verification that is running, and the last results with examples of keys."""
        with context.open_store() as store:
            require_pipeline(store, name)
            return verification.results(store, name)

    @router.post("", status_code=202)
    def start_verification(
        name: str, wish: VerificationWish, caller: Caller = may_operate
    ) -> dict[str, Any]:
        """Compare tables with what sinks hold, in a thread of this server."""
        context.require_servers()
        options = VerifyOptions(tuple(wish.tables), tuple(wish.sinks), float(wish.wait_secs))
        with context.open_store() as store:
            require_pipeline(store, name)
        try:
            begun = verification.start(context.open_store, name, options, f"rest: {caller}")
        except VerificationRunningError as error:
            raise ApiError(409, "VERIFICATION_RUNNING", str(error)) from error
        return verification.answer(begun)

    @router.get("/{verification_id}", dependencies=[may_read_rows])
    def get_verification(name: str, verification_id: str) -> dict[str, Any]:
        """Return one verification: how far it is, or what it found."""
        with context.open_store() as store:
            return verification.answer(_kept(store, name, verification_id))

    @router.post("/{verification_id}/repair", status_code=202)
    def repair_differences(
        name: str, verification_id: str, caller: Caller = may_operate
    ) -> dict[str, Any]:
        """Have the running stream send again what the last verification found to differ.

        The answer is a request as of `/pipelines/{name}/snapshots`, where its progress is.
        """
        with context.open_store() as store:
            kept = _kept(store, name, verification_id)
            with answering(409, "NOT_NOW"):
                by = f"rest: {caller}"
                return verification.request_repair(store, name, kept.id, by).as_dict()

    return router


def _kept(store: Store, name: str, verification_id: str) -> Verification:
    """Return a verification of a pipeline.

    Raises:
        ApiError: there is no such pipeline, or no such verification is kept.
    """
    require_pipeline(store, name)
    found = verification.result(store, name, verification_id)
    if found is None:
        raise ApiError(
            404, "VERIFICATION_NOT_FOUND", f"no verification {verification_id!r} is kept"
        )
    return found
