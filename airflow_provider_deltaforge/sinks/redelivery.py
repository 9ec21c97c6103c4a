"""Events that a sink was given before, and is given again on purpose."""

from typing import Protocol, runtime_checkable

from airflow_provider_deltaforge.sinks.contract import Sink


@runtime_checkable
class MarksDeliveries(Protocol):
    """A sink whose destination leaves out repetitions by a name that each message has."""

    def redelivering(self, mark: str) -> Sink:
        """Return the description with other names for the same events.

        Args:
            mark: tells these deliveries from the former ones.
        """


def redelivering(sink: Sink, mark: str) -> Sink:
    """Return a description for events that are delivered again; see ``MarksDeliveries``."""
    return sink.redelivering(mark) if mark and isinstance(sink, MarksDeliveries) else sink
