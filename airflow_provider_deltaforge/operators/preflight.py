"""Check a source before anything is read from it, and the sinks before anything is written."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_deltaforge.control.preflight import preflight
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, SpecError
from airflow_provider_deltaforge.hooks.jobs import PipelineTask
from airflow_provider_deltaforge.operators.pipeline import PipelineOperator
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.spec.load import load

_VERDICTS = ("ok", "warn", "high_risk", "fail")
_RETRYABLE = RetryableError.error_class


class DeltaForgePreflightOperator(PipelineOperator):
    """Check a source's settings, permissions and retention, and its sinks; return the findings.

    A source that is away fails the task in a way that Airflow retries. While the pipeline's driver
    runs it is only a warning: the driver waits for the source, and the stream task adopts it.

    Args:
        fail_on: the mildest verdict that fails the task: ``fail``, ``high_risk`` or ``warn``.
    """

    moves_data: ClassVar[bool] = False
    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "fail_on")

    def __init__(self, *, fail_on: str = "fail", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fail_on = fail_on

    def execute(self, context: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run the checks on this worker."""
        del context
        if self.fail_on not in _VERDICTS[1:]:
            raise AirflowFailException(f"fail_on must be one of {_VERDICTS[1:]}: {self.fail_on!r}")
        task = self.pipeline_task()
        try:
            task.check_launch()
            pipeline = load(task.text(), task.whole_environment())
            pipeline.refuse_unbuilt()
            findings = _unless_driven(task, pipeline.metadata.name, preflight(pipeline))
        except SpecError as error:
            raise AirflowFailException(str(error)) from error
        except RetryableError as error:
            raise RuntimeError(str(error)) from error  # An Airflow retry may help.
        for finding in findings:
            self.log.info("%s %s: %s", finding.verdict, finding.check, finding.message)
        bar = _VERDICTS.index(self.fail_on)
        wrong = [finding for finding in findings if _VERDICTS.index(finding.verdict) >= bar]
        if wrong:
            worst = max((finding.verdict for finding in wrong), key=_VERDICTS.index)
            messages = "; ".join(f"{f.check}: {f.message}" for f in findings if f.verdict != "ok")
            text = f"preflight verdict {worst}: {messages}"
            if all(map(_is_away, wrong)):
                raise AirflowException(f"{_RETRYABLE}: {text}")
            raise AirflowFailException(text)
        return [
            {"check": f.check, "verdict": f.verdict, "message": f.message, "data": dict(f.data)}
            for f in findings
        ]


def _is_away(finding: Finding) -> bool:
    return finding.data.get("error_class") == _RETRYABLE


def _unless_driven(task: PipelineTask, name: str, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; what is away only warns while a driver runs, which rides that out."""
    away = [finding for finding in findings if finding.verdict == "fail" and _is_away(finding)]
    if not away or not _is_driven(task, name):
        return list(findings)
    waits = "; its driver runs and waits for it"
    return [
        replace(finding, verdict="warn", message=finding.message + waits)
        if finding in away
        else finding
        for finding in findings
    ]


def _is_driven(task: PipelineTask, name: str) -> bool:
    with suppress(DeltaForgeError), task.hook().store() as store:
        return status(store, name, task.backend()).alive
    return False
