"""Where machine code is kept, and digests of the source that it was made from."""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_CACHE_DIR = "NUMBA_CACHE_DIR"
_PACKAGE = "airflow_provider_deltaforge"
_ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(
    rf"^\s*(?:from|import) ({_PACKAGE}[\w.]*)(?: import (\([^)]*\)|[^#\n]*))?", re.MULTILINE
)


def source_stamp(file: Path, root: Path = _ROOT) -> str:
    """Return a digest of a module's source and of every module of the package it stands on.

    Args:
        file: the module.
        root: the directory that holds the package.
    """
    digest = hashlib.sha256()
    for path in sorted(_standing_on(file, root)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def stamp_of(file: str) -> str:
    """Return the stamp of a module of this package; it is worked out once."""
    return source_stamp(Path(file).resolve(), _ROOT.resolve())


def _standing_on(file: Path, root: Path) -> set[Path]:
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path, root)
    return found


@cache
def _imported(file: Path, root: Path) -> tuple[Path, ...]:
    modules = set()
    for module, names in _IMPORT.findall(file.read_text(encoding="utf-8")):
        modules.update([module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))])
    places = [root.joinpath(*module.split(".")) for module in modules]
    files = [*(place.with_suffix(".py") for place in places), *(p / "__init__.py" for p in places)]
    return tuple(path for path in files if path.is_file())


def library_places() -> list[Path]:
    """Return the directories where libraries may lie."""
    chosen = os.environ.get(_CACHE_DIR)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return [
        *([Path(chosen)] if chosen else []),
        Path(__file__).parent / "compiled_kernels",
        # In a container a user may have no home, of which ``Path.expanduser`` would raise.
        *([Path(home) / "deltaforge"] if Path(home).is_absolute() else []),
    ]


def keep(files: Mapping[str, Path], old: str) -> Path:
    """Copy files to the first of ``library_places`` that can be written, and return that.

    They appear there one after the other in their order, each whole; a process goes on with what it
    has loaded of the old ones.

    Args:
        files: name there to file.
        old: a pattern of names; what fits it and is none of the files is removed.

    Raises:
        OSError: no place can be written.
    """
    refused: OSError | None = None
    for place in library_places():
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place, prefix=".new-") as arriving:
                for name, file in files.items():
                    Path(shutil.copyfile(file, Path(arriving) / name)).replace(place / name)
        except OSError as error:
            refused = error
            continue
        for file in place.glob(old):
            if file.name not in files:
                file.unlink(missing_ok=True)
        return place
    raise OSError(
        f"compiled code can be kept nowhere: {refused}; set {_CACHE_DIR} to a writable directory"
    ) from refused
