"""What is in the repository, and what must not be."""

import re
import subprocess
from pathlib import Path

from tests.architecture.probe import CHECKOUT, PACKAGE

_TOP = {
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "dev.sh",
    "docker-compose.airflow.yml",
    "pyproject.toml",
    ".ci/run",
    ".pre-commit-config.yaml",
}
# Absolute places of one machine; examples write /path/to, /etc, /var or /opt/airflow.
_PLACES = re.compile(r"(?<![\w.$}/])/(?:work|root|home/[a-z]+|Users/\w+)/[\w.]")
_UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
_UNWRITTEN = "raise NotImplemented" + "Error"


def _tracked() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    return [CHECKOUT / name for name in done.stdout.split("\0") if name]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (UnicodeDecodeError, FileNotFoundError):
        return ""


def test_the_fixed_files_are_there():
    assert {name for name in _TOP if not (CHECKOUT / name).is_file()} == set()


def test_the_scripts_are_executable():
    assert [
        name for name in ("dev.sh", ".ci/run") if not (CHECKOUT / name).stat().st_mode & 1
    ] == []


def test_no_file_names_a_place_of_one_machine():
    found = {
        str(path.relative_to(CHECKOUT)): match.group()
        for path in _tracked()
        if (match := _PLACES.search(_text(path)))
    }

    assert found == {}


def test_the_search_for_places_bites():
    assert _PLACES.search("see /" + "home/alice/x")
    assert _PLACES.search('"/' + 'work/main"')
    assert not _PLACES.search("$HOME/" + "work/x and ./" + "work/y, https://host/" + "work/z")


def test_nothing_is_left_unfinished():
    found = {
        str(path.relative_to(CHECKOUT)): match.group()
        for path in _tracked()
        if path.suffix in {".py", ".sh", ".md", ".toml", ".yml"}
        if (match := _UNFINISHED.search(_text(path)))
    }

    assert found == {}


def test_what_a_method_leaves_to_others_is_abstract():
    found = [
        str(path.relative_to(CHECKOUT))
        for path in PACKAGE.rglob("*.py")
        if _UNWRITTEN in _text(path)
    ]

    assert found == []


def test_every_extra_named_in_the_code_exists():
    extras = set(
        re.findall(r"^(\w+) = \[", _section("[project.optional-dependencies]"), re.MULTILINE)
    )
    named = {
        (str(path.relative_to(CHECKOUT)), name)
        for path in [*PACKAGE.rglob("*.py"), *CHECKOUT.glob("docs/**/*.md"), CHECKOUT / "README.md"]
        for names in re.findall(r"airflow-provider-deltaforge\[([\w, ]+)\]", _text(path))
        for name in re.split(r"\s*,\s*", names)
    }

    assert extras >= {"airflow", "spark", "mysql", "kafka", "all", "dev"}
    assert {(place, name) for place, name in named if name not in extras} == set()


def _section(head: str) -> str:
    return (CHECKOUT / "pyproject.toml").read_text().split(head)[1].split("\n[")[0]
