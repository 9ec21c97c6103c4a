"""One DAG for each ``*.yaml`` in ``pipelines/``, named as its file.

A run checks the source, copies what is there once, and watches the stream for a window; the next
run adopts the stream. The form of *Trigger* copies chosen tables again. A document with a DAG file
of its own, ``<document>_pipeline.py``, is left to it. One whose DAG's name another document or DAG
file has gives a DAG that refuses, under a numbered name.

``DELTAFORGE_EXAMPLE_DAGS=1`` adds a DAG for each document in ``examples/``, where there is such a
folder: they show what a pipeline can be, and run against nobody's servers as they are.

``DELTAFORGE_WINDOW_S`` sets another window, in seconds; ``pinned`` watches without an end, in one
run started by hand. ``DELTAFORGE_MASTER`` names another Spark master.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_deltaforge.operators.pipeline_dag import (
    dag_id_of,
    pipeline_dag,
    pipeline_name,
)

HERE = Path(__file__).parent
EXAMPLES = os.environ.get("DELTAFORGE_EXAMPLE_DAGS", "0") not in ("", "0")
MASTER = os.environ.get("DELTAFORGE_MASTER", "local[*]")
_ASKED = os.environ.get("DELTAFORGE_WINDOW_S", "21600")
WINDOW = None if _ASKED == "pinned" else timedelta(seconds=int(_ASKED))


def dags(folder: Path) -> list[DAG]:
    """Return the DAGs of a folder of documents; of two with one name only the first may run.

    Args:
        folder: with the documents; those of ``examples`` beside it join them when asked for.
    """
    folders = [folder, folder.parent / "examples"] if EXAMPLES else [folder]
    paths = sorted((path for each in folders for path in each.glob("*.yaml")), key=lambda p: p.name)
    pipelines: dict[str, str] = {}
    taken = {path.stem: path.name for path in folder.parent.glob("*.py") if path != Path(__file__)}
    reserved = {*taken, *map(dag_id_of, paths)}
    found = []
    for path in paths:
        name, dag_id, refused = pipeline_name(path) or path.stem, dag_id_of(path), None
        earlier = pipelines.setdefault(name, path.name)
        if (folder.parent / f"{path.stem}_pipeline.py").exists():
            continue
        if earlier != path.name:
            refused = f"the pipeline {name!r} is already in {earlier}"
        namesake = taken.setdefault(dag_id, path.name)
        if namesake != path.name:
            refused = f"{path.name}: {namesake} has the DAG {dag_id!r}; rename one of the files"
            dag_id = next(free for free in numbered(dag_id) if free not in reserved)
            reserved.add(dag_id)
        dag = pipeline_dag(path, dag_id=dag_id, window=WINDOW, refused=refused, master=MASTER)
        found.append(dag)
    return found


def numbered(dag_id: str) -> Iterator[str]:
    """Yield further names for a DAG whose own is taken."""
    return (f"{dag_id}__{number}" for number in count(2))


globals().update({dag.dag_id: dag for dag in dags(HERE / "pipelines")})
