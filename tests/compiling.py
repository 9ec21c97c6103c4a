"""What a program in a Python of its own compiles beyond what was compiled ahead."""

import gc
import os
import subprocess
import sys

from numba.core.dispatcher import Dispatcher

from tests.architecture.probe import CHECKOUT


def compiled() -> set[tuple[str, str, str]]:
    """Return module, name and signature of each kernel of ours that is compiled here."""
    return {
        (kernel.py_func.__module__, kernel.py_func.__name__, str(signature))
        for kernel in gc.get_objects()
        if isinstance(kernel, Dispatcher) and kernel.py_func.__module__.startswith("airflow_p")
        for signature in kernel.signatures
    }


def compiled_late(program: str, **variables: str) -> list[str]:
    """Run ``program``, and return what was compiled after its call of ``precompiled()``."""
    outcome = subprocess.run(
        [sys.executable, "-c", _FRAME.format(program=program)],
        env={**os.environ, **variables},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    return outcome.stdout.splitlines()


_FRAME = """
from tests.compiling import compiled

before = []
precompiled = lambda: before.append(compiled())
{program}
print(*sorted(compiled() - before[0]), sep="\\n", end="")
"""
