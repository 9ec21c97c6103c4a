"""Where the state is: a description that travels, opened in the process that uses it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from pydantic import SecretStr, model_validator

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.plugins import STORES
from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.spec.template import REFERENCE, VARIABLE
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.telemetry.redaction import redacted

ENVIRONMENT = "DELTAFORGE_STORE"
"""The variable that holds the DSN of the state store."""

JOB = "DELTAFORGE_JOB"
"""The variable by which the processes of one launched driver, one session, know each other."""

EXECUTOR_VARIABLES = "DELTAFORGE_EXECUTOR_VARIABLES"
"""The variable that names, separated by commas, those that a driver hands to its executors."""

DEFAULT_DSN = "sqlite:///.deltaforge/state.db"

_BACKENDS = {"postgresql": "postgres", "postgres": "postgres"}
_KEY_VALUE = re.compile(r"\s*[a-z_]+\s*=")
"""How a connection string of libpq begins that is no URI."""
_PAIRS = re.compile(r"\s*(?:[a-z_]+\s*=\s*(?:'(?:[^'\\]|\\.)*'|(?:[^\s\\]|\\.)*)\s*)+")
_LOCAL_MASTER = re.compile(r"local(\[[^\]]*\]|-cluster\[.*\])?")


class StoreLocation(Settings):
    """Which state store, and where. Picklable; variables in it are resolved by ``open()``.

    A relative path becomes absolute here, so that a process with another working directory opens
    the same file.
    """

    backend: str = "sqlite"
    """Name of the backend: sqlite, postgres, memory, or an installed one."""

    path: str | None = None
    """The file of a SQLite store."""

    dsn: SecretStr | None = None
    """Address of any other store; ``${VAR}`` stays as written until ``open()``."""

    identity: int | None = None
    """The store that must be there, as it named itself; None: whichever is."""

    @model_validator(mode="before")
    @classmethod
    def _anchor(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("path"):
            return {**value, "path": _absolute(os.fspath(value["path"]))}
        return value

    @model_validator(mode="after")
    def _complete(self) -> "StoreLocation":
        if self.backend == "sqlite" and not self.path:
            raise ValueError("storage.path is needed for sqlite: name the database file")
        if self.backend == "sqlite" and self.dsn is not None:
            raise ValueError("storage.dsn means nothing to sqlite; keep storage.path alone")
        if self.backend != "sqlite" and self.path:
            raise ValueError(f"storage.path means nothing to {self.backend}; use storage.dsn")
        if self.backend == "postgres" and self.dsn is None:
            raise ValueError("storage.dsn is needed for postgres: postgresql://user@host/database")
        return self

    @classmethod
    def from_dsn(cls, dsn: str) -> "StoreLocation":
        """Read ``sqlite:///relative``, ``sqlite:////absolute``, ``postgresql://…`` or ``memory://``.

        Args:
            dsn: the address; the scheme of an installed backend is its name.

        Raises:
            SpecError: it has no scheme, or one that nobody answers for.
        """
        if whole := REFERENCE.fullmatch(dsn):
            # Which backend it is only the value says; the secret in it stays where it is.
            value = _value_of(whole, os.environ)
            if REFERENCE.fullmatch(value):
                raise SpecError(f"the state store's DSN {dsn} is another variable, {value}")
            named = cls.from_dsn(value)
            return named if named.path else named.model_copy(update={"dsn": SecretStr(dsn)})
        scheme, found, rest = dsn.partition("://")
        if not found and _KEY_VALUE.match(dsn):
            return cls(backend="postgres", dsn=SecretStr(dsn))
        if not found or "$" in scheme:
            raise SpecError(
                "the state store's DSN must begin with its scheme: sqlite:///path/state.db, or "
                "postgresql://user:${PASSWORD}@host/database; PostgreSQL's own form is 'host=… "
                "dbname=… user=…'"
            )
        if scheme == "sqlite":
            if not rest.startswith("/") or rest == "/":
                raise SpecError(
                    "write sqlite:///path for a path below the working directory and "
                    "sqlite:////path for an absolute one"
                )
            return cls(backend="sqlite", path=rest[1:])
        backend = _BACKENDS.get(scheme, scheme)
        if backend not in STORES.names():
            raise SpecError(
                f"no state store is called {backend!r} (known: {', '.join(STORES.names())})"
            )
        return cls(backend=backend, dsn=SecretStr(dsn))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "StoreLocation":
        """Read ``DELTAFORGE_STORE``; without it, ``.deltaforge/state.db`` below this directory."""
        values = os.environ if environment is None else environment
        return cls.from_dsn(values.get(ENVIRONMENT) or DEFAULT_DSN)

    def to_dsn(self) -> str:
        """Return the DSN, variables unresolved; a password written into it is in it."""
        if self.dsn is not None:
            return self.dsn.get_secret_value()
        return f"sqlite:///{self.path}" if self.path else f"{self.backend}://"

    def file(self) -> Path | None:
        """Return the file of a SQLite store, variables and ``~`` resolved; None for any other.

        Raises:
            SpecError: a variable is not set.
        """
        if self.backend != "sqlite":
            return None
        return Path(_resolve(self.path or "", os.environ)).expanduser().absolute()

    def is_same(self, other: "StoreLocation") -> bool:
        """Return whether both name one store, with the variables of this process.

        Raises:
            SpecError: a variable is not set.
        """
        if self.backend != other.backend:
            return False
        mine, others = self.file(), other.file()
        if mine is not None and others is not None:
            return mine.resolve() == others.resolve()
        return _resolve(self.to_dsn(), os.environ) == _resolve(other.to_dsn(), os.environ)

    def shown(self) -> str:
        """Return the DSN as a person may see it, without a password."""
        # Up to the last `@`: a password may hold what should have been percent-encoded.
        return redacted(re.sub(r"(://[^/@:]*):.*@", r"\1:***@", self.to_dsn(), flags=re.DOTALL))

    def open(self) -> Store:
        """Connect to a store that is there, with the variables of this process; make none.

        Raises:
            SpecError: a variable is not set, or the backend or its driver is not installed.
            RetryableError: the store is away, was never made, or another one lies in its place.
            AccessError: it refused us.
        """
        return self._opened(create=False)

    def create(self) -> Store:
        """Do the same, and make a store where there is none; for ``run`` and ``apply`` only."""
        return self._opened(create=True)

    def of(self, store: Store) -> "StoreLocation":
        """Return where this very store is: opening it never opens another at the same address."""
        return self.model_copy(update={"identity": getattr(store, "identity", None)})

    def _opened(self, *, create: bool) -> Store:
        store_class = STORES.load(self.backend)
        if self.backend == "sqlite":
            file = str(self.file())
            return cast(Store, store_class(file, create=create, identity=self.identity))
        address = _resolve(self.to_dsn(), os.environ)
        if self.backend == "memory":
            return cast(Store, store_class(address.partition("://")[2]))
        return cast(Store, store_class(address, create=create, identity=self.identity))

    def require_reachable(self, master: str) -> None:
        """Refuse a store that the executors of a Spark master could not open.

        Args:
            master: Spark's master URL.

        Raises:
            SpecError: the reason, and what to use instead.
        """
        instead = "use postgresql://…, which every executor can reach"
        if self.backend == "memory":
            raise SpecError(
                f"a state store in memory belongs to one process, and Spark ({master}) runs lanes "
                f"in others: use sqlite:///path on this host, or {instead}"
            )
        if self.backend == "sqlite" and not _LOCAL_MASTER.fullmatch(master):
            raise SpecError(
                f"the state store {self.path} is a file of this host, and the executors of "
                f"{master} may run on others: {instead}, or run with --master local[*]"
            )


def _absolute(path: str) -> str:
    if "${" in path:
        return path  # Resolved where it is opened.
    return str(Path(path).expanduser().absolute())


def _resolve(text: str, environment: Mapping[str, str]) -> str:
    """Put the values of variables in; in a user or password they are taken letter by letter.

    A password from the environment may hold ``@``, ``/`` or ``%``; it is percent-encoded here,
    so that it can never become part of the host, which error messages show. A DSN that is one
    variable as a whole stands for the DSN in it, whose own variables are resolved as well.
    """
    whole = REFERENCE.fullmatch(text)
    if whole:
        text = _value_of(whole, environment)
    masked = REFERENCE.sub(lambda match: "x" * len(match.group()), text)
    authority = re.match(r"[^:/]+://([^/@?]*)@", masked)
    secret_until = authority.end(1) if authority else 0

    # A path has no such pairs: where it holds variables it is relative, or begins with a slash.
    is_pairs = _PAIRS.fullmatch(masked)

    def replace(match: re.Match[str]) -> str:
        value = _value_of(match, environment)
        if is_pairs:  # Of pairs, a value ends with a blank that no backslash stands before.
            return re.sub(r"([\s'\\])", r"\\\1", value)
        return quote(value, safe="") if match.start() < secret_until else value

    return REFERENCE.sub(replace, text)


def _value_of(match: re.Match[str], environment: Mapping[str, str]) -> str:
    variable = VARIABLE.fullmatch(match.group(1))
    if variable is None:
        raise SpecError(
            f"{match.group()!r} in the state store's DSN is not a variable; write '${{NAME}}'"
        )
    name, default = variable.groups()
    # As in a shell, the default also stands in for an empty variable.
    value = environment.get(name) or default
    if value is None:
        raise SpecError(
            f"the state store's DSN needs the variable {name!r}, which is not set in this process; "
            f"set it, or write '${{{name}:-default}}'"
        )
    return str(value)
