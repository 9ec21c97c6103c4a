"""How often a source looks, how long it waits, and how much it holds: what no document asks for."""

from dataclasses import dataclass

from airflow_provider_deltaforge.sources.shared.preflight import RATE_PROBE_S


@dataclass(frozen=True, slots=True)
class PostgresTuning:
    """The defaults are what runs; tests that wait have others. Seconds where ``_s`` says so.

    Attributes:
        segment_bytes: a segment of the log is cut when it has so many bytes.
        receive_bytes: with less room than this for what comes next, a segment is cut as well.
        look_s: between two looks for new tables, and for tables with other names.
        leaving_s: so long, a slot that its last reader still holds is asked for without an error.
        in_use_s: after so long it is an error for a person; longer if the server takes longer to
            notice that a reader has gone.
        settle_s: how long a snapshot waits for transactions that may be committing.
        lock_wait_s: how long a chunk waits for a table that somebody alters.
        replica_s: how long a reader of rows waits for a standby that is behind.
        sampled_blocks: the bounds of a table's chunks are counted out below so many pages, and
            drawn from a sample of its pages from there on.
        rate_probe_s: between the preflight's two looks at the log, which give its rate.
        long_s: transactions that are open for longer are named by the preflight.
    """

    segment_bytes: int = 4 << 20
    receive_bytes: int = 1 << 16
    look_s: float = 10.0
    leaving_s: float = 3.0
    in_use_s: float = 90.0
    settle_s: float = 60.0
    lock_wait_s: float = 60.0
    replica_s: float = 60.0
    sampled_blocks: int = 2_000
    rate_probe_s: float = RATE_PROBE_S
    long_s: float = 300.0


POSTGRES_TUNING = PostgresTuning()
