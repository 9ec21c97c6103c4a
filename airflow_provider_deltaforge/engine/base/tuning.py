"""How often a worker looks, how long it waits, and how much it holds: what no document asks for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """The defaults are what runs; tests that wait have others. Seconds where ``_s`` says so.

    Attributes:
        beat_s: between two heartbeats of a lane.
        measure_s: between two writes of what a lane measures.
        retention_s: between two questions what the source keeps of its log.
        control_s: between two looks at the control record of a pipeline that is paused.
        listen_s: between two looks at it of a task that copies.
        cancelled_s: between two looks whether a replay is still wanted.
        confirmed_s: for so long, an epoch that was found to be the newest counts as that.
        long_call_s: a processor that works on one batch for longer is shown as hanging.
        checkpoint_s: between two checkpoints while all goes well.
        idle_checkpoint_s: between two checkpoints that move over what holds nothing for sinks.
        room_s: between two looks for room in the dead-letter queue.
        first_expiry_s: until a lane first looks for dead letters that are too old.
        held_dead_letters: with more of them, they are stored before the position moves.
        optional_sink_s: so long, a lane waits at its start for what sinks tell that it can do
            without.
        refused_sink_s: so long, a sink that has refused us is left alone.
        lease_s: how long a writer may write after it has asked for its epoch.
        lease_renewed_s: a lease that is older is renewed before a write.
        lease_least_s: what must be left of it for a write.
        replay_page: so many entries of the dead-letter queue a replay reads at once.
        replay_round: so many it sends together; no two of one row, so that each waits for the one
            before.
        sink_commands_s: between two looks at what people want of sinks.
        chunk_bytes: a chunk whose events have more bytes is split before it is written to sinks
            that take chunks at once.
        copied_again_s: until a copy of a table that appeared is tried again.
        query_s: between two looks whether Spark's streaming query has ended.
    """

    beat_s: float = 0.5
    measure_s: float = 5.0
    retention_s: float = 60.0
    control_s: float = 0.5
    listen_s: float = 1.0
    cancelled_s: float = 1.0
    confirmed_s: float = 2.0
    long_call_s: float = 60.0
    checkpoint_s: float = 0.1
    idle_checkpoint_s: float = 1.0
    room_s: float = 0.5
    first_expiry_s: float = 5.0
    held_dead_letters: int = 1000
    optional_sink_s: float = 5.0
    refused_sink_s: float = 30.0
    lease_s: float = 5.0
    lease_renewed_s: float = 1.0
    lease_least_s: float = 1.0
    replay_page: int = 50
    replay_round: int = 200
    sink_commands_s: float = 2.0
    chunk_bytes: int = 16 << 20
    copied_again_s: float = 60.0
    query_s: float = 0.2


TUNING = Tuning()
