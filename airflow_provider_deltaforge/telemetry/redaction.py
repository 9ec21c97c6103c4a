"""Takes secrets out of text that drivers or people wrote, before it reaches a log or a page.

Every pattern is bounded or stops where the next match could begin, so a hostile text costs time in
proportion to its length.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

HIDDEN = "***"
# From the slashes on: looking for a scheme at each letter of a long word is quadratic. A password
# goes on to the last `@` of its host part, and may hold a slash that should have been escaped.
_URL_PASSWORD = re.compile(
    r"(?P<head>://[^\s:/\"']*):"
    r"(?P<password>(?:[^\s/?\"'@]+|[^\s@\"']{1,256})@(?:[^\s/?\"'@]*@)*)"
)
_WORD = (
    r"(?:passw(?:or)?d|pwd|passphrase|secret|token|credential|authorization"
    r"|private_key|api[_-]?key)"
)
_KEY_VALUE = re.compile(
    rf"(?P<head>{_WORD}\w{{0,64}}[\"']?\s*[=:]\s*)"
    r"(?:\"(?:\\.|[^\"\\])*\"?|'(?:\\.|''|[^'\\])*'?"  # One that never closes hides the rest.
    r"|(?:(?:bearer|basic)\s+)?[^\s,;&\"']+)",
    re.IGNORECASE | re.DOTALL,
)
_SERVERS_WORDS = re.compile(r"password: (?:YES|NO)\)?")
"""As in ``(using password: YES)``, which shows whether there was one."""
_SENTENCE = re.compile(r"[a-z]+ [a-z]")
"""As in ``spec.sinks[0].config.token: holds a secret``: what is wrong with a document's key."""
_KEY_PATH_MAX = 200
_REFERENCE = r"\$\{\w+(?::-)?\}"
_FIELD_OR_VARIABLE = re.compile(rf"{_REFERENCE}|\$\{{[\w.]+\}}")
QUERY_KEYS = r"[?&](?:key|sig|signature|code)"
"""Parameters that hold secrets in an address; anywhere else these are ordinary words."""
_QUERY_VALUE = re.compile(rf"(?P<head>{QUERY_KEYS}\s*=\s*)(?P<value>[^&\s\"']+)", re.IGNORECASE)
NATS_SCHEMES = r"(?:nats|tls)://"
"""Of addresses in which a login without a password is a token, not the name of a user."""
# Of the others the settings refuse a login alone, so what stands there may be anything.
_TOKEN_LOGIN = re.compile(
    rf"(?P<head>(?:{NATS_SCHEMES}|(?:https?|rediss?)://))(?P<value>[^\s@:/,\"']+)(?=@)"
)
# Without a scheme only the key, or the comma of a list of addresses, shows that it may be one.
_BARE_TOKEN_LOGIN = re.compile(
    r"(?P<head>\burl[\"']?\s*:\s*[\"']?|,\s*)(?P<value>[^\s@:/,\"'{}]+)(?=@)", re.IGNORECASE
)
# In brackets, another key, their end or the line's follows; else it is a part of the value.
_VALUE_END = r"(?=\s*$|\s+#|[\s}\]]*[}\]]\s*(?:$|,)|\s*,\s*(?:$|[\"']?[\w.-]{1,64}[\"']?\s*:))"
_DOCUMENT_WORD = rf"(?:{_WORD}|nkey_seed|\.pem|jaas|oauthbearer\.config|assertion\.private)"
SECRET_NAME = re.compile(_DOCUMENT_WORD, re.IGNORECASE)
"""Found in the names of a document's keys that hold secrets."""
_ALIAS = re.compile(r"(?<![^\s,:\[{])\*[\w-]")
_ONLY_REFERENCE = re.compile(_REFERENCE)
_BEFORE_KEY = re.compile(r"[ \t?-]*")
_BEFORE_VALUE = re.compile(r"(?:[&!]\S*\s+)*")
_ANY_KEY = re.compile(r"(?P<quote>[\"']?)[\w.-]+(?P=quote)\s*:(?:\s|$)")
_QUOTED = {
    '"': re.compile(r'"(?:\\.|[^"\\])*"'),
    "'": re.compile(r"'(?:''|[^'])*'(?!')"),
}


@dataclass(frozen=True)
class _KeyPatterns:
    """What finds the keys of secrets in a line of a document."""

    secret: "re.Pattern[str]"
    secret_or_anchor: "re.Pattern[str]"
    last_reference: "re.Pattern[str]"
    """A key whose value begins with a reference and may go on below."""

    @classmethod
    def of(cls, word: str) -> "_KeyPatterns":
        key = rf"{word}[\w.-]{{0,64}}[\"']?\s*[=:]"
        secret = rf"{key}(?!-\}}|\s*(?P<quote>[\"']?){_REFERENCE}(?P=quote){_VALUE_END})"
        return cls(
            re.compile(secret, re.IGNORECASE),
            re.compile(rf"{secret}|&[\w-]+", re.IGNORECASE),
            re.compile(rf"{key}(?=\s*{_REFERENCE}\s*$)", re.IGNORECASE),
        )


_PARSED_KEYS = _KeyPatterns.of(_DOCUMENT_WORD)
_ALL_KEYS = _KeyPatterns.of(rf"(?:{_DOCUMENT_WORD}|(?<![\w.-])headers(?=[\"']?\s*:))")


def redacted(text: str) -> str:
    """Return ``text`` with passwords in URLs and ``key=value`` pairs replaced by ``***``."""
    return _KEY_VALUE.sub(_hidden_value, _without_url_passwords(text))


def _hidden_value(found: "re.Match[str]") -> str:
    if _SERVERS_WORDS.fullmatch(found[0]) and found.string[: found.start()].endswith("using "):
        return found[0]
    if _SENTENCE.match(found.string, found.end("head")) and _is_document_key(found):
        return found[0]
    return f"{found['head']}{HIDDEN}"


def _is_document_key(found: "re.Match[str]") -> bool:
    if not found["head"].endswith(": "):
        return False
    before = found.string[max(found.start() - _KEY_PATH_MAX, 0) : found.start()]
    return re.search(r"(?:^|\s)spec\.\S*\Z", before) is not None


def redacted_address(text: str) -> str:
    """Return an address of a document without passwords, tokens and secret parameters."""
    return _QUERY_VALUE.sub(_hidden_part, _TOKEN_LOGIN.sub(_hidden_part, redacted(text)))


def redacted_document(text: str, *, is_parsed: bool = False) -> str:
    """Return a YAML document for people, with whatever may be a secret replaced by ``***``.

    Beside a key such as ``password`` the rest of the line goes, and the lines below that belong to
    its value; only a reference such as ``${DB_PASSWORD}`` stays. If one of these values is an
    alias, the value of every anchor goes. The text need not be valid YAML.

    Args:
        text: the document.
        is_parsed: the caller has read it, and replaced what only its structure shows to be a
            secret; else ``headers`` go as well, and logins without a password.
    """
    text = _without_url_passwords(text)
    text = _QUERY_VALUE.sub(_hidden_part, _TOKEN_LOGIN.sub(_hidden_part, text))
    if not is_parsed:
        text = _BARE_TOKEN_LOGIN.sub(_hidden_part, text)
    keys = _PARSED_KEYS if is_parsed else _ALL_KEYS
    lines = text.splitlines()
    shown, hidden = _parted(lines, keys.secret, keys.last_reference)
    if any(_ALIAS.search(part) for part in hidden):
        shown, _ = _parted(lines, keys.secret_or_anchor, keys.last_reference)
    return "\n".join([*shown, ""])


def _hidden_part(found: "re.Match[str]") -> str:
    if _FIELD_OR_VARIABLE.fullmatch(found["value"]):
        return found[0]
    return f"{found['head']}{HIDDEN}"


def redacted_value(value: Any) -> Any:
    """Return a parsed document for people, with whatever may be a secret replaced by ``***``.

    Beside and below a key such as ``password`` only references such as ``${DB_PASSWORD}``, true,
    false and null stay.
    """
    return _shown(value, is_secret=False)


def _shown(value: Any, *, is_secret: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _shown(member, is_secret=is_secret or SECRET_NAME.search(str(key)) is not None)
            for key, member in value.items()
        }
    if isinstance(value, list):
        return [_shown(item, is_secret=is_secret) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if is_secret and not (isinstance(value, str) and _ONLY_REFERENCE.fullmatch(value)):
        return HIDDEN
    return redacted(value) if isinstance(value, str) else value


def _parted(
    lines: Iterable[str], key: "re.Pattern[str]", last_reference: "re.Pattern[str]"
) -> tuple[list[str], list[str]]:
    """Return what may be shown of some lines, and what may not."""
    shown: list[str] = []
    hidden: list[str] = []
    hiding: _Hiding | None = None
    for line in lines:
        if hiding is not None and hiding.hides(line):
            hidden.append(line)
            continue
        found = key.search(line)
        if found is None:
            shown.append(line)
        else:
            shown.append(f"{line[: found.end()]} {HIDDEN}")
            hidden.append(line[found.end() :])
        if not line.lstrip().startswith("#"):  # A comment ends no value, and has none below.
            begun = found or last_reference.search(line)
            hiding = _Hiding.below(line, begun) if begun else None
    return shown, hidden


@dataclass
class _Hiding:
    """Which of the lines below a hidden value belong to it."""

    column: int
    """Where the first key of the value's line stands."""
    quote: str
    """The quotation mark that is still open."""
    bare: bool
    """Nothing of the value has come yet."""
    is_flow: bool
    """It stands in brackets, where indentation says nothing."""

    @classmethod
    def below(cls, line: str, key: "re.Match[str]") -> "_Hiding":
        value = _BEFORE_VALUE.sub("", line[key.end() :].strip(), count=1)
        column = len(line) - len(_BEFORE_KEY.sub("", line, count=1))
        is_flow = not _closes_its_brackets(line, "," in line[: key.start()])
        is_open = value[:1] in _QUOTED and _QUOTED[value[0]].match(value) is None
        return cls(column, value[0] if is_open else "", not value, is_flow)

    def hides(self, line: str) -> bool:
        """Return whether the next line is hidden as well."""
        inside = line.strip()
        column = len(line) - len(line.lstrip())
        if self.quote:
            if _QUOTED[self.quote].match(self.quote + inside):
                self.quote = ""
            return True
        if column > self.column or not inside:
            return True
        if self.is_flow:
            return column == self.column or _ANY_KEY.match(inside) is None
        if inside.startswith("#"):
            return False
        is_item = column == self.column and (inside == "-" or inside.startswith("- "))
        is_alone = self.bare and _ANY_KEY.match(inside) is None
        self.bare = False
        return is_item or is_alone


def _closes_its_brackets(line: str, within: bool) -> bool:  # noqa: FBT001 - one caller
    """Return whether no bracket stays open; ``within`` is whether a line without any is in one."""
    depths = [0]
    for mark in _QUOTED['"'].sub("", _QUOTED["'"].sub("", line)):
        if mark in "[]{}":
            depths.append(depths[-1] + (1 if mark in "[{" else -1))
    return min(depths) == depths[-1] == 0 and not (within and len(depths) == 1)


def _without_url_passwords(text: str) -> str:
    return _URL_PASSWORD.sub(_hidden_in_url, text)


def _hidden_in_url(found: "re.Match[str]") -> str:
    if re.fullmatch(f"{_REFERENCE}@", found["password"]):
        return found[0]
    return f"{found['head']}:{HIDDEN}@"
