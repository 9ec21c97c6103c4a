"""``@task.deltaforge``: a function that returns a pipeline's document, and the stream of it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk.bases.decorator import (
    DecoratedOperator,
    TaskDecorator,
    determine_kwargs,
    task_decorator_factory,
)
from airflow.sdk.definitions.context import context_merge
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator


class DecoratedStreamOperator(DecoratedOperator, DeltaForgeStreamOperator):
    """Supervises the stream of the document that a function returns.

    The function is called on a worker, whenever the task begins and whenever it goes on after its
    trigger fired: it has to return the same document, or a newer one of the same pipeline. What it
    returns is no template.
    """

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in DeltaForgeStreamOperator.template_fields if name != "document"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = dict(
        DecoratedOperator.template_fields_renderers
    )
    custom_operator_name = "@task.deltaforge"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        called: dict[str, Any] = {
            "python_callable": python_callable,
            "op_args": op_args,
            "op_kwargs": op_kwargs,
        }
        super().__init__(**called, document="", **kwargs)

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Call the function, and supervise the stream of what it returns."""
        self.document = self._called(context)
        return super().execute(context)

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Act on what the trigger saw."""
        self.document = self._called(context)
        return super().execute_complete(context, event)

    def _called(self, context: Mapping[str, Any]) -> str | Mapping[str, Any]:
        merged = dict(context)
        context_merge(merged, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, merged)
        document = self.python_callable(*self.op_args, **kwargs)
        if not document or not isinstance(document, str | Mapping):
            raise AirflowFailException(
                f"{self.python_callable.__name__} must return a pipeline's document, as text, as a "
                f"mapping or its path, not {type(document).__name__}"
            )
        return document


def stream_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a task of a function that returns a pipeline's document.

    Args:
        python_callable: the function.
        kwargs: arguments of `DeltaForgeStreamOperator`, all but ``document``.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        decorated_operator_class=DecoratedStreamOperator,
        **kwargs,
    )
