"""Which subjects can be published to, and which streams take them."""

import re
from collections.abc import Collection, Iterable

# A line of the protocol, with subject and reply, may have 4096 bytes.
_BYTES_MAX = 3000
_ILLEGAL = re.compile(r"[\s\x00-\x1f\x7f*>]")


def illegal(subject: str, template: str) -> str:
    """Return why nothing can be published to ``subject``, or nothing.

    Args:
        subject: as rendered for one message.
        template: what the document says.
    """
    if _ILLEGAL.search(subject):
        return "it holds a blank, a control character, '*' or '>'"
    if not all(subject.split(".")):
        return "a part between two dots is empty"
    if len(subject.encode()) > _BYTES_MAX:
        return f"it is longer than {_BYTES_MAX} bytes"
    first = subject.partition(".")[0]
    # What a row holds must not become a request to the server, such as one to delete a stream.
    if first.startswith("$") and first != template.partition(".")[0]:
        return "what begins with '$' belongs to the server"
    return ""


def takes(patterns: Iterable[str], subject: str) -> bool:
    """Return whether one of a stream's subjects covers ``subject``."""
    tokens = subject.split(".")
    return any(_covers(pattern.split("."), tokens) for pattern in patterns)


def covering(subjects: Collection[str]) -> str:
    """Return one pattern that covers all of these subjects.

    Args:
        subjects: at least one.
    """
    rows = [subject.split(".") for subject in subjects]
    tokens = [each[0] if len(set(each)) == 1 else "*" for each in zip(*rows, strict=False)]
    if len({len(row) for row in rows}) > 1:
        tokens[-1] = ">"
    return ".".join(tokens)


def may_take(patterns: Iterable[str], template: str) -> bool:
    """Return whether some value of the template's fields could give a covered subject."""
    fixed = template.partition("${")[0]
    if fixed == template:
        return takes(patterns, template)
    tokens = fixed.split(".")[:-1]
    return any(_begins(pattern.split("."), tokens) for pattern in patterns)


def _covers(pattern: list[str], tokens: list[str]) -> bool:
    if pattern[-1] == ">":
        return len(tokens) >= len(pattern) and _begins(pattern, tokens[: len(pattern) - 1])
    return len(tokens) == len(pattern) and _begins(pattern, tokens)


def _begins(pattern: list[str], tokens: list[str]) -> bool:
    for wanted, token in zip(pattern, tokens, strict=False):
        if wanted == ">":
            return True
        if wanted not in ("*", token):
            return False
    return True
