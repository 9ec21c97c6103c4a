"""The Python of a cluster's hosts: an environment of its own, with the wheel in it."""

import subprocess
import sys
from pathlib import Path

from tests.architecture.probe import CHECKOUT


def cluster_python(place: Path) -> Path:
    """Return the interpreter of an environment that has the wheel, and of ours what it needs."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, check=True, cwd=CHECKOUT, capture_output=True)
    [wheel] = place.glob("*.whl")
    home = place / "deltaforge"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    [site] = home.glob("lib/python*/site-packages")
    # A line of a .pth file is a path, and the .pth files there are not read: nor is our checkout.
    ours = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    (site / "dependencies.pth").write_text(f"{ours}\n")
    return python
