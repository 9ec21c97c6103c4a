"""Errors, grouped by what the engine does about them.

DeltaForgeError
├── SpecError            the document is wrong            -> exit 2, HTTP 400
├── RetryableError       try the same call again          -> backoff; the pipeline is ``blocked``
│   └── WrongServerError  another kind of server answers there
├── ServerChangedError   another server answers           -> the lane begins again where it stands
├── FatalError           a person must act                -> the pipeline is ``failed``
│   ├── AccessError      credentials, permissions, TLS
│   ├── PositionLostError  the source no longer has the log we need
│   ├── SchemaError      a row cannot be decoded without guessing
│   │   └── TableError   and the table is known: it can stop alone
│   └── FencedError      a newer driver owns the pipeline, or another writer its sink
└── EventError           one event is bad, the rest fine  -> dead letter, or stop

An error's text is read by people and stored: it names what to do next and never holds a row's
values or a secret. Arguments are positional only, so that every error survives pickling.
"""


class DeltaForgeError(Exception):
    """Base of everything this package raises on purpose.

    ``error_class`` is the stable word that status, metrics and Airflow show and branch on.
    """

    error_class = "error"


class SpecError(DeltaForgeError):
    """The pipeline document is wrong; the text names the key."""

    error_class = "spec"


class RetryableError(DeltaForgeError):
    """The same call may work later."""

    error_class = "retryable"


class WrongServerError(RetryableError):
    """Another kind of server answers at an address of the document.

    It is waited for like one that is away, because a name or a port may be put right meanwhile;
    the preflight takes it for a failure.
    """


class ServerChangedError(DeltaForgeError):
    """Another server answers than the one that was read from.

    The whole transactions that were read are delivered; then the log is opened anew, and both
    servers are compared. What was read of a transaction without its end is read again.
    """

    error_class = RetryableError.error_class


class FatalError(DeltaForgeError):
    """Trying again cannot help; a person must act."""

    error_class = "fatal"


class AccessError(FatalError):
    """Authentication, authorisation or TLS was refused."""

    error_class = "access"


class PositionLostError(FatalError):
    """The source no longer keeps the log from the position we need."""

    error_class = "position_lost"


class SchemaError(FatalError):
    """A table's rows do not match any schema we can trust."""

    error_class = "schema"


class TableError(SchemaError):
    """One table cannot be decoded; arguments are the text and the table's full name."""

    def __str__(self) -> str:
        """Return the text alone."""
        return str(self.args[0])

    @property
    def table(self) -> str:
        """Full name of the table."""
        return str(self.args[1])


class FencedError(FatalError):
    """A newer driver owns this pipeline; nothing we write counts any more.

    A sink that delivers exactly once raises it as well, when another writer has shut this one out:
    the lane then asks whether its own epoch still stands, and if so takes over again.
    """

    error_class = "fenced"


class EventError(DeltaForgeError):
    """One event cannot be rendered or delivered."""

    error_class = "event"
