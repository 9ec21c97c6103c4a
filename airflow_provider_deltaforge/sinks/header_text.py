"""Text that headers hold as it is, whoever reads them."""

from urllib.parse import quote

# Every other printable character may stand in a header; % is what others are encoded by.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

ENCODED = r"[^ -~]|%|^ | $"
"""Matches what ``header_text`` does not leave as it is."""


def header_text(content: bytes) -> str:
    """Return UTF-8 text as a header can hold it.

    ``%``, all but printable ASCII, and blanks at both ends, which readers drop, are
    percent-encoded.
    """
    text = quote(content, safe=_PLAIN)
    bare = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    return "%20" * lead + bare + "%20" * (len(text) - lead - len(bare))
