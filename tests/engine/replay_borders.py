"""The borders of a replay of dead letters, which no stream or snapshot crosses by itself."""

from airflow_provider_deltaforge.engine.borders import Border

OF_REPLAYS = (Border.REPLAY_WRITTEN, Border.REPLAY_STORED, Border.REPLAY_REMOVED)
