"""Which commands of the pages are run against an embedded pipeline, and why the others are not."""

import re

from tests.docs.pages import typed
from tests.docs.shell import Shell

RUNNING = (
    "validate orders.yaml",
    "preflight orders.yaml",
    "plan orders.yaml",
    "status",
    "status orders",
    "schemas orders",
    "sinks list orders",
    "verify orders",
    "verify orders --repair",
    "snapshot FILE --again",
    "snapshot FILE --tables shop.orders",
    "snapshot orders.yaml --tables shop.orders",
    "dlq list orders",
    "dlq count orders --kind processor",
    "dlq replay orders --all --dry-run",
    "token create grafana --scope read",
    "token create oncall --scope operate",
    "token create ci --scope admin",
    "token list",
    "token revoke grafana",
    "backup state.dfbackup",
)
"""In this order, while the pipeline ``orders`` runs."""

STOPPED = (
    "stop orders",
    "dlq replay orders --all",
    "dlq purge orders --confirm orders",
    "reset orders --confirm orders",
)
"""In this order, when it was stopped."""

_NAMES = {"FILE": "orders.yaml", "shop.orders": "main.orders"}
"""What the pipeline of the tests has in place of what a page names."""

_NOT_RUN = {
    r"run .*": "stays: the first page, the incidents, docs/plugins.md",
    r"serve.*": "stays: tests/api",
    r"fleet .*": "stays: tests/e2e/test_fleet.py",
    r"status --watch": "stays",
    r"dlq (peek|ack) .*": "run by the first page and the incidents",
    r".*--store .*": "names a store elsewhere",
    r".*(dags/pipelines/|visits\.yaml).*": "README and docs/plugins.md run theirs",
    r"log .*": "needs MySQL or PostgreSQL: tests/cli",
    r"(drift|sense) .*": "needs schema sensing: tests/sensing",
    r"slots .*": "needs PostgreSQL: tests/sources/postgres",
    r"snapshot FILE --tables .*(where|items).*": "of tables that only a page has: tests/cli",
    r"verify orders --tables .*": "names a sink that the pipeline here has not: tests/cli",
    r"token create (ann|ops) .*": "one of several alike",
    r"rewind .*": "needs delivered changes, and servers with such places: tests/engine, tests/cli",
    r"image .*": "tests/cli/test_image.py",
    r"precompile": "tests/cli/test_precompile.py",
    r"archive .*": "needs an archive of the log: tests/cli",
    r"sinks (give-up|resume|adopt) .*": "needs a sink that is not waited for: tests/cli",
}


def on_pages() -> set[str]:
    """Return every ``deltaforge`` command that readers type, without the program's name."""
    return {" ".join(c.words[1:]) for c in typed() if c.words[0] == "deltaforge"}


def is_excused(command: str) -> bool:
    """Return whether a command is one of those that are not run here."""
    return any(re.fullmatch(pattern, command) for pattern in _NOT_RUN)


def run(shell: Shell, listed: tuple[str, ...]) -> None:
    """Run commands of pages, with the names of the tests' pipeline."""
    for command in listed:
        words = (_NAMES.get(word, word) for word in command.split())
        code, said = shell.run(" ".join(["deltaforge", *words]))
        assert code == 0, f"{command}: {said}"


def unneeded_excuses() -> list[str]:
    """Return the excuses that no command of a page needs any more."""
    left = on_pages()
    return [pattern for pattern in _NOT_RUN if not any(re.fullmatch(pattern, c) for c in left)]
