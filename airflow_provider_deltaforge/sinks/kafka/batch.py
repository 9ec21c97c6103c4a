"""How far one batch has come on its way to the brokers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.kafka import error_codes

CONTENT_TYPE = "content-type"
_AT_ONCE = 4096
_HEADERS = pa.map_(pa.string(), pa.binary())
_NAME_MAX = 249
_QUICK = 0.25


@dataclass
class KafkaBatch:
    """One batch, from its first message handed over to its last answer.

    Attributes:
        messages: The whole batch.
        singly: Each message is a request of its own, so that a refusal names one message.
        next: The first message not yet handed to the producer.
        done: The first message not yet known to be answered.
        refused: Messages that cannot be delivered, by index.
        begun_s: When ``done`` was handed over, by our own clock; 0 before.
        failures: Answers that do not say which message they are about.
    """

    messages: Messages
    singly: bool = False
    next: int = 0
    done: int = 0
    refused: dict[int, Any] = field(default_factory=dict)
    failures: list[Any] = field(default_factory=list)
    begun_s: float = 0.0

    def some(self, end: int) -> tuple[list[str], list[Any], list[Any]]:
        """Return topics, keys and values of the next messages; as objects they take much memory.

        Args:
            end: the first message that is not to be handed over yet.
        """
        these = slice(self.next, min(end, self.next + _AT_ONCE))
        names = self.messages.topics.dictionary.to_pylist()
        return (
            [names[code] for code in self.messages.topics.indices[these].to_pylist()],
            self.messages.keys[these].to_pylist(),
            self.messages.values[these].to_pylist(),
        )

    def left(self, *, singly: bool = False) -> "KafkaBatch":
        """Return the same batch from its first message on that is not answered.

        Args:
            singly: each goes in a request of its own from there on.
        """
        return replace(self, singly=singly or self.singly, next=self.done, failures=[], begun_s=0.0)

    def headers(self, count: int, label: Sequence[tuple[str, str]]) -> list[Any]:
        """Return the headers of so many next messages.

        Args:
            count: of messages.
            label: what each gets that has an envelope, and no content type of a processor's choice.
        """
        these = slice(self.next, self.next + count)
        own, bare = self.messages.headers, self.messages.bare
        # The client would cut a text at a NUL character.
        found = [None] * count if own is None else own[these].cast(_HEADERS).to_pylist()
        if not label:
            return found
        takes = self.messages.values[these].is_valid()
        takes = takes if bare is None else pc.and_not(takes, bare[these])
        return [
            [*(headers or ()), *label] if is_labelled and not _has_type(headers) else headers
            for headers, is_labelled in zip(found, takes.to_pylist(), strict=True)
        ]

    def note(self, index: int, error: Any | None, _message: Any) -> None:
        """Take the answer for one message."""
        if error is None:
            return
        if error.code() in error_codes.REJECTED:
            self.refused[index] = error
        else:
            self.failures.append(error)

    def rejections(self, where: str) -> list[Rejection]:
        """Return what was refused, in the order of the messages."""
        return [self._rejection(where, *each) for each in sorted(self.refused.items())]

    def _rejection(self, where: str, index: int, error: Any) -> Rejection:
        kind = error_codes.REJECTED[error.code()]
        topic = str(self.messages.topics[index].as_py())[:_NAME_MAX]
        reason = f"{where}: topic {topic!r}: {error.str()}; {error_codes.MENDS[kind]}"
        return Rejection(self.messages.event_rows[index].as_py(), kind, reason)


class SendLimit:
    """How many messages may wait for their answers at the same time; any, until some are given up.

    Attributes:
        most: so many.
    """

    def __init__(self) -> None:
        self.most = 1 << 40

    def lower(self, work: KafkaBatch, answered: int) -> None:
        """Learn how many were answered in all the time that they had, of those handed over."""
        self.most = max(1, (answered or work.next - work.done) // 2)

    def learn(self, share: float) -> None:
        """Learn that ``most`` were answered in a share of that time."""
        if share < _QUICK:
            self.most *= 2

    def end(self, work: KafkaBatch) -> int:
        """Return the first message of a batch that has to wait."""
        return min(len(work.messages), work.done + self.most)


def _has_type(headers: Sequence[tuple[str, str]] | None) -> bool:
    return any(name.lower() == CONTENT_TYPE for name, _ in headers or ())


def by_halves(
    messages: Messages, errors_of: Callable[[Messages], list[Any]]
) -> tuple[dict[int, Any], int]:
    """Find which messages are refused.

    Args:
        messages: not all of them are taken together.
        errors_of: tries some of them, and returns the errors.

    Returns:
        The error of each that is refused alone, and the fewest that were taken together.
    """
    refused: dict[int, Any] = {}
    taken = len(messages)
    spans = [(0, len(messages))]
    while spans:
        start, stop = spans.pop()
        errors = errors_of(messages.slice(start, stop - start))
        if not errors:
            taken = min(taken, stop - start)
        elif stop - start == 1:
            refused[start] = errors[0]
        else:
            middle = (start + stop) // 2
            spans += [(middle, stop), (start, middle)]
    return refused, taken
