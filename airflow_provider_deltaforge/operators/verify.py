"""Compare a pipeline's tables with what its sinks hold."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control.verification import (
    VerificationRun,
    answer,
    in_words,
    repair,
)
from airflow_provider_deltaforge.engine.verify.options import VerifyOptions
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.events.table_names import split_names
from airflow_provider_deltaforge.hooks.jobs import owner_token
from airflow_provider_deltaforge.operators.pipeline import PipelineOperator
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.verifications import Verification

_FAIL_ON = ("different", "incomplete", "never")


class DeltaForgeVerifyOperator(PipelineOperator):
    """Compare tables with what sinks hold, beside the running stream; return what was found.

    It works on this worker, which has to reach the source and the sinks.

    Args:
        tables: names or patterns of captured tables, a list or a text with commas; all when empty.
        sinks: ids of sinks, likewise.
        fail_on: ``different``: fail when rows differ; ``incomplete``: also when something could not
            be compared; ``never``: only when the verification itself fails.
        wait: how long a sink's checkpoint may take to reach the log's end.
        examples: keys shown of each kind.
        repair: have the running stream send again what differs, and verify once more.
    """

    moves_data: ClassVar[bool] = False
    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "tables", "sinks")

    def __init__(
        self,
        *,
        tables: Sequence[str] | str = (),
        sinks: Sequence[str] | str = (),
        fail_on: Literal["different", "incomplete", "never"] = "different",
        wait: timedelta = timedelta(minutes=1),
        examples: int = 10,
        repair: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tables, self.sinks = tables, sinks
        self.fail_on = fail_on
        self.wait = wait
        self.examples = examples
        self.repair = repair
        self._run: VerificationRun | None = None

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Verify on this worker."""
        if self.fail_on not in _FAIL_ON:
            raise AirflowFailException(f"fail_on must be one of {_FAIL_ON}: {self.fail_on!r}")
        task = self.pipeline_task()
        options = VerifyOptions(
            split_names(self.tables),
            split_names(self.sinks),
            wait_s=self.wait.total_seconds(),
            examples=self.examples,
        )
        try:
            name = load(task.text(), expand=False).metadata.name
            with task.hook().store() as store:
                environment, by = task.whole_environment(), owner_token(context)

                def verified() -> Verification:
                    self._run = VerificationRun(store, name, options, by, environment)
                    if self._is_killed:
                        self._run.cancel()
                    self._run.begin()
                    return self._run.run()

                found = verified()
                if self.repair and found.verdict == "different":
                    self.log.info("%s: %s; repairing", name, in_words(found))
                    repair(store, name, found, by, lambda: self._is_killed)
                    found = verified()
        except RetryableError as error:
            raise RuntimeError(str(error)) from error  # An Airflow retry may help.
        except DeltaForgeError as error:
            raise AirflowFailException(str(error)) from error
        words = f"{name}: {in_words(found)}"
        self.log.info("%s", words)
        if found.error_class not in (None, RetryableError.error_class):
            raise AirflowFailException(words)
        if found.state != "finished":
            raise RuntimeError(words)
        fails = {"different": ("different",), "incomplete": ("different", "incomplete")}
        if found.verdict in fails.get(self.fail_on, ()):
            raise AirflowFailException(f"{words}; 'deltaforge verify' and the page show examples")
        return answer(found)

    def on_kill(self) -> None:
        """End the verification with the task."""
        super().on_kill()
        if self._run is not None:
            self._run.cancel()
