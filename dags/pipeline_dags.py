"""One DAG for each ``*.yaml`` in ``pipelines/``, named as its file.

A run checks the source, copies what is there once, and watches the stream for a window; the next
run adopts the stream. The form of *Trigger* copies chosen tables again. A document with a DAG file
of its own, ``<document>_pipeline.py``, is left to it.

``DELTAFORGE_WINDOW_S`` sets another window, in seconds; ``pinned`` watches without an end, in one
run started by hand. ``DELTAFORGE_MASTER`` names another Spark master.
"""

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_deltaforge.operators.pipeline_dag import pipeline_dag, pipeline_name

HERE = Path(__file__).parent
MASTER = os.environ.get("DELTAFORGE_MASTER", "local[*]")
_ASKED = os.environ.get("DELTAFORGE_WINDOW_S", "21600")
WINDOW = None if _ASKED == "pinned" else timedelta(seconds=int(_ASKED))


def dags(folder: Path) -> list[DAG]:
    """Return the DAGs of a folder of documents; of two with one name only the first may run."""
    found, first = [], {}
    for path in sorted(folder.glob("*.yaml")):
        name = pipeline_name(path) or path.stem
        earlier = first.setdefault(name, path.name)
        if (folder.parent / f"{path.stem}_pipeline.py").exists():
            continue
        refused = f"the pipeline {name!r} is already in {earlier}" if earlier != path.name else None
        found.append(pipeline_dag(path, window=WINDOW, refused=refused, master=MASTER))
    return found


globals().update({dag.dag_id: dag for dag in dags(HERE / "pipelines")})
