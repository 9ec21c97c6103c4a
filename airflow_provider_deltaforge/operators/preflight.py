"""Check a source before anything is read from it, and the sinks before anything is written."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control.preflight import preflight
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.operators.pipeline import PipelineOperator
from airflow_provider_deltaforge.spec.load import load

_VERDICTS = ("ok", "warn", "high_risk", "fail")


class DeltaForgePreflightOperator(PipelineOperator):
    """Check a source's settings, permissions and retention, and its sinks; return the findings.

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
            findings = preflight(pipeline)
        except SpecError as error:
            raise AirflowFailException(str(error)) from error
        except RetryableError as error:
            raise RuntimeError(str(error)) from error  # An Airflow retry may help.
        worst = max((_VERDICTS.index(finding.verdict) for finding in findings), default=0)
        for finding in findings:
            self.log.info("%s %s: %s", finding.verdict, finding.check, finding.message)
        if worst >= _VERDICTS.index(self.fail_on):
            messages = "; ".join(f"{f.check}: {f.message}" for f in findings if f.verdict != "ok")
            raise AirflowFailException(f"preflight verdict {_VERDICTS[worst]}: {messages}")
        return [
            {"check": f.check, "verdict": f.verdict, "message": f.message, "data": dict(f.data)}
            for f in findings
        ]
