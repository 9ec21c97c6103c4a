"""The pages as a reader has them: blocks, commands, links and anchors."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPERATORS = {"|", "||", "&&", ";", "&"}
_NOT_IN_SLUGS = re.compile(r"[^\w\- ]")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and where it stands."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One program with its arguments, as a page has readers type it."""

    place: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place} {' '.join(self.words)}"


def pages() -> list[Path]:
    """Return every page: the README and what lies below docs."""
    return [CHECKOUT / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    """Return a page's path from the checkout on."""
    return str(page.relative_to(CHECKOUT))


@cache
def tokens(page: Path) -> list[Token]:
    """Return a page as markdown-it reads it."""
    return _MARKDOWN.parse(page.read_text())


def fences(parsed: list[Token], page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page that was parsed."""
    for token in parsed:
        if token.type == "fence" and token.map:
            yield Block(page, token.map[0] + 1, token.info.strip(), token.content)


def blocks(*languages: str) -> list[Block]:
    """Return every block of these languages, or of any, on all pages."""
    found = (block for page in pages() for block in fences(tokens(page), name_of(page)))
    return [block for block in found if not languages or block.language in languages]


def lines(block: Block) -> list[str]:
    """Return what a console block has people type, each command whole.

    A command begins with ``$ `` and goes on while a quote is open or a line ends with a backslash;
    what stands between commands is what they print.
    """
    found: list[str] = []
    open_line = ""
    for line in block.text.splitlines():
        if not open_line and not line.startswith("$ "):
            continue
        open_line += line.removeprefix("$ ") if not open_line else f"\n{line}"
        if _is_whole(open_line):
            found.append(open_line)
            open_line = ""
    if open_line:
        raise ValueError(f"{block}: a quote is never closed: {open_line}")
    return found


def _is_whole(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return False
    return not line.endswith("\\")


def commands(line: str, place: str) -> list[Command]:
    """Return the programs that a line of a shell runs, those in ``$(…)`` as well.

    Variables set in front of a program, redirections and ``sudo`` are left out.
    """
    found = []
    for inner in _SUBSTITUTION.findall(line):
        found += commands(inner, place)
    text = _SUBSTITUTION.sub("SUBSTITUTED", line.replace("\\\n", " "))
    reader = shlex.shlex(text, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words: list[str] = []
    for word in [*reader, ";"]:
        if word in _OPERATORS:
            if program := _program(words):
                found.append(Command(place, program))
            words = []
        else:
            words.append(word)
    return found


def _program(words: list[str]) -> tuple[str, ...]:
    kept: list[str] = []
    is_file = False
    for word in words:
        if is_file:
            is_file = False
        elif set(word) <= {"<", ">", "&"}:
            is_file = True
            if kept[-1:] == ["2"]:
                kept.pop()
        else:
            kept.append(word)
    while kept and _ASSIGNMENT.match(kept[0]):
        kept = kept[1:]
    if kept[:1] == ["sudo"]:
        kept = kept[3:] if kept[1:2] == ["-u"] else kept[1:]
    if kept[:2] == ["docker", "exec"]:
        kept = kept[3:]
    if kept and "/bin/" in kept[0]:
        kept[0] = kept[0].rpartition("/")[2]
    return tuple(kept)


def typed() -> list[Command]:
    """Return every command of every console block; the reference is made from the program."""
    return [
        command
        for block in blocks("console")
        if block.page != "docs/reference/cli.md"
        for line in lines(block)
        for command in commands(line, str(block))
    ]


def inline_code() -> Iterator[tuple[str, str]]:
    """Yield place and text of everything between backticks."""
    for page in pages():
        for token in tokens(page):
            at = token.map[0] + 1 if token.map else 0
            for child in token.children or ():
                if child.type == "code_inline":
                    yield f"{name_of(page)}:{at}", child.content


@dataclass(frozen=True)
class Link:
    """Where a page leads: the target's path is empty for an anchor on the same page."""

    page: Path
    target: str
    anchor: str

    def __str__(self) -> str:
        return f"{name_of(self.page)} -> {self.target}{'#' * bool(self.anchor)}{self.anchor}"


def links(parsed: list[Token], page: Path) -> Iterator[Link]:
    """Yield the links and pictures of a page that lead to files, not to other hosts."""
    for token in parsed:
        for child in token.children or ():
            target = child.attrs.get("href") if child.type == "link_open" else None
            target = target or (child.attrs.get("src") if child.type == "image" else None)
            if target and not re.match(r"[a-z]+:", str(target)):
                path, _, anchor = str(target).partition("#")
                yield Link(page, path, anchor)


def slug(heading: str) -> str:
    """Return the anchor of a heading that is the first of its name."""
    return _NOT_IN_SLUGS.sub("", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    parsed = tokens(page)
    for number, token in enumerate(parsed):
        if token.type == "heading_open":
            text = "".join(
                child.content
                for child in parsed[number + 1].children or ()
                if child.type in ("text", "code_inline")
            )
            name = slug(text)
            count = found.get(name, 0)
            found[name] = count + 1
            if count:
                found[f"{name}-{count}"] = 1
    return frozenset(found)
