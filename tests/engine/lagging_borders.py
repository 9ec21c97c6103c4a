"""The borders that only a pipeline crosses of which a sink is behind; see test_behind_kills."""

from airflow_provider_deltaforge.engine.borders import Border

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
