"""Downloads kept between runs, each under a hash of what it was made from."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_MANIFEST = "manifest.json"


def root() -> Path:
    """Return the cache directory: ``$DELTAFORGE_CACHE``, or ``.deltaforge/cache`` here."""
    named = os.environ.get("DELTAFORGE_CACHE")
    path = Path(named) if named else Path(__file__).parents[2] / ".deltaforge" / "cache"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache entry ``name``, so that two sessions never fetch the same thing at once."""
    with (root() / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def entry(name: str, key: str, build: Callable[[Path], None]) -> Path:
    """Return the directory ``<name>-<key>``, building it when it is missing or damaged.

    ``build`` fills a scratch directory that gets its name only when it is complete; a killed
    build therefore leaves nothing that looks finished. Call it under ``locked(name)``.
    """
    final = root() / f"{name}-{key}"
    if _intact(final):
        return final
    shutil.rmtree(final, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root()))
    try:
        build(scratch)
        (scratch / _MANIFEST).write_text(json.dumps(_sizes(scratch)))
        scratch.chmod(0o755)
        scratch.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


def _sizes(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def _intact(directory: Path) -> bool:
    try:
        expected = json.loads((directory / _MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    found = _sizes(directory)
    found.pop(_MANIFEST, None)
    return bool(expected) and expected == found
