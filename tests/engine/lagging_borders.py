"""The borders that only some pipelines cross, and where else they are shown."""

from airflow_provider_deltaforge.engine.base.crash_points import Border

OF_LAGGARDS = frozenset(
    {
        Border.SINK_LEFT,
        Border.CAUGHT_UP_WRITTEN,
        Border.CAUGHT_UP_STORED,
        Border.SINK_JOINED,
        Border.SINK_GIVEN_UP,
        Border.SINK_RESUMED,
    }
)
"""Of a pipeline of which a sink is behind: test_behind_kills."""
OF_REPLAYS = frozenset({Border.REPLAY_WRITTEN, Border.REPLAY_STORED, Border.REPLAY_REMOVED})
"""Of one whose dead letters are sent again: test_kills."""
