"""The crash points that only some pipelines reach, and where else they are shown."""

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint

OF_LAGGING = frozenset(
    {
        CrashPoint.SINK_LEFT,
        CrashPoint.CAUGHT_UP_WRITTEN,
        CrashPoint.CAUGHT_UP_STORED,
        CrashPoint.SINK_JOINED,
        CrashPoint.SINK_GIVEN_UP,
        CrashPoint.SINK_RESUMED,
    }
)
"""Of a pipeline of which a sink is behind: test_behind_kills."""
OF_REWINDS = frozenset(
    {
        CrashPoint.REWIND_STORED,
        CrashPoint.REWIND_ASKED,
        CrashPoint.REWIND_ADOPTED,
        CrashPoint.REWIND_ENDED,
    }
)
"""Of one of which a sink is given the log again: test_rewind_kills."""
OF_ARCHIVES = frozenset(
    {
        CrashPoint.ARCHIVE_BEGUN,
        CrashPoint.ARCHIVE_OPENED,
        CrashPoint.ARCHIVE_FILE_UNFINISHED,
        CrashPoint.ARCHIVE_FILES_WRITTEN,
        CrashPoint.ARCHIVE_STORED,
        CrashPoint.ARCHIVE_OLD_DELETED,
    }
)
"""Of one that archives its log: test_archive."""
OF_REPLAYS = frozenset(
    {CrashPoint.REPLAY_WRITTEN, CrashPoint.REPLAY_STORED, CrashPoint.REPLAY_REMOVED}
)
"""Of one whose dead letters are sent again: test_kills."""
OF_PARTS = frozenset({CrashPoint.PART_WRITTEN})
"""Of one that writes parts of a batch at the same time: test_parallel_kills."""
