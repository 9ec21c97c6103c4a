"""Takes secrets out of text that drivers wrote, before it reaches a log, a status or an error."""

import re

_HIDDEN = "***"
# From the slashes on: looking for a scheme at each letter of a long word is quadratic.
_URL_PASSWORD = re.compile(r"(?P<head>://[^\s:/@]*):[^\s@]+@")
_KEY_VALUE = re.compile(
    r"(?P<head>\b\w*(?:password|passwd|pwd|secret|token|api_key|apikey)\w*[\"']?\s*[=:]\s*)"
    r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """Return ``text`` with passwords in URLs and ``key=value`` pairs replaced by ``***``."""
    text = _URL_PASSWORD.sub(lambda found: f"{found['head']}:{_HIDDEN}@", text)
    return _KEY_VALUE.sub(lambda found: f"{found['head']}{_HIDDEN}", text)
