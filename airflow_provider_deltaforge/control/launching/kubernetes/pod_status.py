"""What a pod says of the driver in it, in words for people.

Everything here reads the API's JSON and nothing else.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_provider_deltaforge.control.launching.contract import JobState, JobStatus
from airflow_provider_deltaforge.telemetry.redaction import redacted

Pod = Mapping[str, Any]

_DRIVER_CONTAINER = "spark-kubernetes-driver"
"""Spark's name for the driver's container."""

OVERDUE_S = 60.0
"""A pod that is there for so long after the end of its grace is on a node that does not answer."""

_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_FIRST_SIGNAL = 128
_PULLS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
    }
)
_PREPARES = frozenset({"ContainerCreating", "PodInitializing"})
_MESSAGE_MAX = 300


def driver_status(pod: Pod | None, now: datetime, executors: Sequence[Pod] = ()) -> JobStatus:
    """Return how the driver in a pod is.

    Args:
        pod: as the API answers; None: there is none.
        now: the present, with its time zone.
        executors: pods that the driver asked for; what keeps them waiting is shown.
    """
    if pod is None:
        return JobStatus(JobState.ENDED, detail="its pod is gone: somebody deleted it, or its node")
    name = f"pod {_meta(pod).get('name')}"
    node = pod.get("spec", {}).get("nodeName")
    place = f"{name} on node {node}" if node else name
    status = pod.get("status") or {}
    ended = _ended(pod, place)
    if ended is not None:
        return ended
    if is_overdue(pod, now) or status.get("phase") == "Unknown":
        words = f"{place} cannot be asked: its node does not answer"
        return JobStatus(JobState.UNKNOWN, detail=words)
    if _meta(pod).get("deletionTimestamp"):
        return JobStatus(JobState.RUNNING, detail=f"{place} is being ended")
    waits = waiting(pod)
    if waits is not None:
        return JobStatus(JobState.RUNNING, detail=f"{name}: {waits}")
    short = next(filter(None, (waiting(executor) for executor in executors)), None)
    return JobStatus(JobState.RUNNING, detail=f"its executor waits: {short}" if short else place)


def is_overdue(pod: Pod, now: datetime) -> bool:
    """Return whether a pod should have been gone long ago."""
    due = _meta(pod).get("deletionTimestamp")
    if not due:
        return False
    moment = datetime.fromisoformat(str(due).replace("Z", "+00:00"))
    return (now.astimezone(timezone.utc) - moment).total_seconds() > OVERDUE_S


def waiting(pod: Pod) -> str | None:
    """Return what a pod that has not begun waits for; None when it runs or has ended."""
    status = pod.get("status") or {}
    if status.get("phase", "Pending") != "Pending":
        return None
    containers = [*(status.get("initContainerStatuses") or ()), *_containers(pod)]
    held = [state for state in map(_waiting_state, containers) if state]
    for container, state in sorted(held, key=lambda pair: pair[1]["reason"] in _PREPARES):
        return _container_waits(container, state)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node takes it ({_words(condition)})"
    return "waits for a node" if not pod.get("spec", {}).get("nodeName") else "its node prepares it"


def _container_waits(container: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    reason = state["reason"]
    if reason in _PULLS:
        return (
            f"the image {container.get('image')} cannot be pulled ({_words(state)}); check the "
            "extra kubernetes_image, and imagePullSecrets of the service account"
        )
    if reason in _PREPARES:
        return "its node prepares the container"
    if reason == "CreateContainerConfigError":
        return f"its container cannot be made ({_words(state)}); is the Secret there?"
    return f"its container cannot start ({_words(state)})"


def _ended(pod: Pod, place: str) -> JobStatus | None:
    """Return how a driver ended; None while it has not."""
    status = pod.get("status") or {}
    terminated = (_driver(pod).get("state") or {}).get("terminated")
    if terminated:
        return _terminated(pod, terminated, place)
    phase = status.get("phase")
    if phase == "Succeeded":
        return JobStatus(JobState.ENDED, 0, detail=f"{place} succeeded")
    if phase != "Failed":
        return None
    reason = status.get("reason")
    if reason == "Evicted":
        words = f"{place} was evicted ({_short(status.get('message'))})"
    else:
        words = f"{place} failed ({_words(status)})"
    return JobStatus(JobState.ENDED, None, detail=words)


def _terminated(pod: Pod, terminated: Mapping[str, Any], place: str) -> JobStatus:
    code = int(terminated.get("exitCode", 0))
    reason = terminated.get("reason")
    if reason == "OOMKilled":
        limit = _memory_limit(pod)
        words = (
            f"{place} was killed: it used more than its memory{f', {limit}' if limit else ''} "
            "(OOMKilled); raise spark.driver.memoryOverhead in spark_conf"
        )
        return JobStatus(JobState.ENDED, None, detail=words)
    if (pod.get("status") or {}).get("reason") == "Evicted":
        message = _short(pod["status"].get("message"))
        return JobStatus(JobState.ENDED, None, detail=f"{place} was evicted ({message})")
    if code > _FIRST_SIGNAL or terminated.get("signal"):
        number = terminated.get("signal") or code - _FIRST_SIGNAL
        signal = _SIGNALS.get(number, f"signal {number}")
        return JobStatus(JobState.ENDED, None, detail=f"{place} was killed by {signal}")
    if reason in {"Completed", "Error", None}:
        return JobStatus(JobState.ENDED, code, detail=f"{place} ended with exit code {code}")
    # ContainerCannotRun, StartError: nothing of the driver ran, so the code is not its own.
    return JobStatus(JobState.ENDED, None, detail=f"{place} could not run ({_words(terminated)})")


def driver_container(pod: Pod) -> str:
    """Return the name of the container that the driver runs in; a pod template may have its own."""
    for container in pod.get("spec", {}).get("containers") or ():
        if (container.get("args") or [None])[0] == "driver":
            return str(container["name"])
    return _DRIVER_CONTAINER


def _driver(pod: Pod) -> Mapping[str, Any]:
    """Return the status of the driver's container."""
    name = driver_container(pod)
    return next((status for status in _containers(pod) if status.get("name") == name), {})


def _containers(pod: Pod) -> Sequence[Mapping[str, Any]]:
    return (pod.get("status") or {}).get("containerStatuses") or ()


def _waiting_state(
    container: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    state = (container.get("state") or {}).get("waiting")
    return (container, state) if state and state.get("reason") else None


def _memory_limit(pod: Pod) -> str | None:
    for container in pod.get("spec", {}).get("containers") or ():
        if container.get("name") == driver_container(pod):
            limits = (container.get("resources") or {}).get("limits") or {}
            return limits.get("memory")
    return None


def _meta(pod: Pod) -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = pod.get("metadata") or {}
    return metadata


def _words(state: Mapping[str, Any]) -> str:
    words = [str(state.get("reason") or ""), _short(state.get("message"))]
    return ": ".join(word for word in words if word) or "no reason was given"


def _short(message: object) -> str:
    return " ".join(redacted(str(message or "")).split())[:_MESSAGE_MAX]
