"""Makes libraries of kernels: extension modules that need neither numba nor LLVM.

numba's ahead-of-time compiler makes them; it wants a C compiler and Python's headers, once.
"""

import json
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow_provider_deltaforge.columns.compiled import (
    Call,
    Kernel,
    library_file,
    manifest_suffix,
)
from airflow_provider_deltaforge.columns.kept_code import keep
from airflow_provider_deltaforge.errors import DeltaForgeError


class NoCompilerError(DeltaForgeError):
    """This machine cannot make extension modules."""


def build(name: str, calls: Iterable[Call]) -> Path:
    """Make a library of kernels, and put it in the place of the last of this name.

    Args:
        name: a word, the library's.
        calls: ``compiled.recorded`` ones of the kernels that it is to have.

    Returns:
        Its manifest.

    Raises:
        NoCompilerError: no C compiler, or no headers of Python.
        OSError: no place can be written.
    """
    with warnings.catch_warnings():
        # "Pending deprecation" until there is something else; where it is gone, kernels are
        # compiled by the process that runs them.
        warnings.simplefilter("ignore")
        try:
            from numba.pycc import CC

            module = f"deltaforge_kernels_{name}"
            library = CC(module, source_module=__name__)
        except (ImportError, RuntimeError) as error:
            raise NoCompilerError(
                "kernels cannot be made ahead here: install a C compiler and the headers of "
                f"Python ({error})"
            ) from error
    library.target_cpu = "generic"  # What a newer processor has more made no kernel faster.
    kernels = _exported(library, calls)
    with tempfile.TemporaryDirectory(prefix="deltaforge-kernels-") as made:
        library.output_dir, library.output_file = made, f"{module}.so"
        with patch("numba.pycc.compiler.Flags", _flags):
            _compiled(library)
        code, manifest = Path(made) / f"{module}.so", Path(made) / "manifest"
        file, suffix = library_file(name, code.read_bytes()), manifest_suffix()
        content = {"module": module, "file": file, "kernels": kernels}
        manifest.write_text(json.dumps(content, indent=1, sort_keys=True))
        # The manifest comes last: it names the other.
        place = keep(
            {file: code, f"{name}{suffix}": manifest},
            old=f"{name}-*{suffix.removesuffix('.json')}.so",
        )
    return place / f"{name}{suffix}"


def _exported(library: Any, calls: Iterable[Call]) -> dict[str, Any]:
    """Name what a library is to have, and return what its manifest says of it."""
    from numba import typeof
    from numba.core.typing import signature

    asked: dict[Kernel, dict[str, tuple[Any, ...]]] = defaultdict(dict)
    for kernel, kinds, arguments in calls:
        asked[kernel][kinds] = arguments
    kernels: dict[str, Any] = {}
    symbols: dict[str, str] = {}
    for kernel, variants in asked.items():
        if kernel.name in kernels:
            raise ValueError(f"two kernels are called {kernel.name}")
        code: dict[str, str] = {}
        for kinds, arguments in variants.items():
            types = tuple(map(typeof, arguments))
            compiled = kernel.dispatcher.overloads[types]
            symbol = symbols.setdefault(f"{kernel.name} {types}", f"kernel_{len(symbols)}")
            if symbol not in code.values():
                library.export(symbol, signature(compiled.signature.return_type, *types))(
                    kernel.function
                )
            code[kinds] = symbol
        kernels[kernel.name] = {"stamp": kernel.stamp, "code": code}
    return kernels


def _flags() -> Any:
    """Return how kernels are compiled, here as in ``jit.dispatcher``."""
    from numba.core.compiler import Flags

    flags = Flags()
    flags.release_gil = True
    flags.error_model = "numpy"
    return flags


def _compiled(library: Any) -> None:
    from setuptools.errors import CCompilerError

    try:
        library.compile()
    except CCompilerError as error:
        raise NoCompilerError(
            f"kernels cannot be made ahead here: {error}; are the headers of Python installed?"
        ) from error
