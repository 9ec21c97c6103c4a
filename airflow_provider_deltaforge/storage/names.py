"""The namespaces of the state store, and what a key may be made of."""

ARCHIVES = "archives"
"""Key-value map: where pipelines have begun to archive their log, under ``PIPELINE/PLACE``."""

CHECKPOINTS = "checkpoints"
"""Key-value map: positions of a pipeline's sinks."""

CLAIMS = "claims"
"""Slots: which pipeline owns a source id."""

CONTROL = "control"
"""Slots: one control record per pipeline."""

CURSORS = "cursors"
"""Key-value map: pipelines that begin anew, whatever positions their sinks still hold; and, under
``PIPELINE/SINK``, positions of other state stores that sinks hold."""

DATA_DRIFT = "data_drift"
"""Key-value map: where a pipeline's rows differ from their tables, under ``PIPELINE/TABLE``."""

DOCUMENTS = "documents"
"""Key-value map: pipeline documents, unexpanded."""

EPOCHS = "epochs"
"""Slots: a slot's version is the pipeline's epoch, which fences every write of a driver."""

FAILOVER = "failover"
"""Key-value map and log: server identities and what a failover was reconciled to."""

FLEETS = "fleets"
"""Key-value map: what fleets that a supervisor has started say of their documents."""

GAPS = "gaps"
"""Key-value map: what sinks lack that were given up, and what people want of them."""

HISTORY = "history"
"""Key-value map: what pipelines did, minute by minute; a record for each hour of the last day."""

JOURNAL = "journal"
"""Queues: dead letters, under ``PIPELINE:dlq``. Key-value map: replays of them."""

LOGS = "logs"
"""Key-value map: the end of what drivers logged, under ``PIPELINE/driver``, ``PIPELINE/lane``."""

MEASUREMENTS = "measurements"
"""Key-value map: what drivers measure, for metrics."""

PROGRESS = "progress"
"""Key-value map: what a driver says about itself."""

SCHEMAS = "schemas"
"""Log: the schemas of a source's tables, under ``TENANT/SOURCEID``."""

SENSING = "sensing"
"""Key-value map: what schema sensing has learned, under ``PIPELINE/TENANT/TABLE``; up to what sinks
were sent events of it, under ``PIPELINE//TENANT/TABLE``."""

SNAPSHOTS = "snapshots"
"""Key-value map: runs, plans and finished chunks."""

TABLES = "tables"
"""Key-value map: tables of a pipeline that stopped, and that appeared with rows of their own."""

TOKENS = "tokens"
"""Key-value map: who may use the REST API, by the hash of the token."""

VERIFICATIONS = "verifications"
"""Key-value map: results of comparing sinks with their source, and who is comparing. Slots: whose
turn it is."""

WRITERS = "writers"
"""Key-value map: writers of sinks that have begun and are not known to be closed."""

OF_PIPELINES = (
    *(ARCHIVES, CHECKPOINTS, CURSORS, DATA_DRIFT, GAPS, HISTORY, JOURNAL, LOGS, SENSING),
    *(SNAPSHOTS, TABLES, VERIFICATIONS),
)
"""Where the keys of the key-value map begin with a pipeline's name."""


def check(namespace: str, key: str) -> None:
    """Refuse names that one of the backends could not keep.

    Raises:
        ValueError: ``namespace`` or ``key`` holds a NUL or half of a surrogate pair.
    """
    for name in (namespace, key):
        if "\0" in name:
            raise ValueError("a namespace or key of the state store cannot hold a NUL character")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError("a namespace or key of the state store must be valid text") from None


def after(prefix: str) -> str | None:
    """Return the lowest text above everything that starts with ``prefix``; None: there is none.

    Texts are compared by code point, which is also the order of their UTF-8 bytes.
    """
    for end in range(len(prefix), 0, -1):
        code = ord(prefix[end - 1])
        if code == 0x10FFFF:
            continue
        following = 0xE000 if code == 0xD7FF else code + 1
        return prefix[: end - 1] + chr(following)
    return None
