"""Whether an Airflow worker outlives its task: a driver that is its child process has to."""

import os

from airflow.sdk.configuration import conf

from airflow_provider_deltaforge.errors import SpecError

_MARKS = {
    "AIRFLOW_IS_K8S_EXECUTOR_POD": "KubernetesExecutor",
    "AIRFLOW_IS_EXECUTOR_CONTAINER": "an executor that gives each task a container",
}
"""Variables that executors set in what they make for one task. A pod's template may name another
executor in ``AIRFLOW__CORE__EXECUTOR``, so these are looked at first."""

_SHORT_LIVED = frozenset(
    {"KubernetesExecutor", "AwsEcsExecutor", "AwsBatchExecutor", "AwsLambdaExecutor"}
)


def require_lasting_worker(executor: str | None) -> None:
    """Refuse a driver beside this process when Airflow ends its worker together with the task.

    ``[deltaforge] long_lived_workers`` overrides what is read from the executor.

    Args:
        executor: the task's own, as the operator names it; None: the installation's.

    Raises:
        SpecError: the worker is short-lived.
    """
    if conf.getboolean("deltaforge", "long_lived_workers", fallback=False):
        return
    ends_by = _short_lived_by(executor)
    if ends_by is None:
        return
    raise SpecError(
        f"the launch backend `local` is refused: it makes the driver a process of the worker, and "
        f"with {ends_by} the worker ends with its task, and the stream with it. Run drivers on a "
        "cluster (launch_backend='standalone', 'kubernetes' or 'yarn'), or this task on workers "
        "that stay (executor='LocalExecutor'); docs/airflow.md, 'Where drivers run', has both. If "
        "these workers do outlive their tasks, set AIRFLOW__DELTAFORGE__LONG_LIVED_WORKERS=True"
    )


def _short_lived_by(executor: str | None) -> str | None:
    """Return which executor ends this worker with its task; None when none is known to."""
    for variable, words in _MARKS.items():
        if os.environ.get(variable, "").lower() in {"true", "1"}:
            return words
    name = _class_name(executor, conf.get("core", "executor", fallback=""))
    return name if name in _SHORT_LIVED else None


def _class_name(executor: str | None, configured: str) -> str:
    """Return the class of a task's executor.

    Args:
        executor: an alias, a class or a module path; None: the first that is configured.
        configured: ``[core] executor``: ``A,alias:module.B;team=C``.
    """
    names = configured.partition(";")[0].strip("=").split(",")
    aliases = dict(name.strip().split(":", 1) for name in names if ":" in name)
    chosen = executor or names[0].strip().rpartition(":")[2]
    return aliases.get(chosen, chosen).strip().rpartition(".")[2]
