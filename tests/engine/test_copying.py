"""Tasks that copy chunks say why they cannot, in a class the driver can act on."""

from airflow_provider_deltaforge.engine.copying import copy_chunks
from airflow_provider_deltaforge.engine.job import Job
from airflow_provider_deltaforge.sources.contract import TableChunk
from tests.engine.in_process import DRIVER, InProcess

CHUNK = TableChunk("script.rows:1", "script", None, "rows", {"low": 1, "high": 10})


def test_a_fenced_task_says_fenced_and_copies_nothing():
    pipeline = InProcess(snapshot="initial")
    pipeline.control.take_epoch("newer")
    told = list(copy_chunks(Job(pipeline.document, pipeline.location, DRIVER, 1), "r1", [CHUNK]))
    assert [(copied.outcome.why, copied.outcome.error_class) for copied in told] == [
        ("fenced", "fenced")
    ]
    assert pipeline.log().messages() == []


def test_a_document_that_cannot_be_read_where_the_task_runs_is_no_death_of_the_task():
    pipeline = InProcess(snapshot="initial")
    pipeline.control.take_epoch(DRIVER)
    document = pipeline.document.replace("keys: 30", "keys: '${NOT_SET_ON_THIS_EXECUTOR}'")
    told = list(copy_chunks(Job(document, pipeline.location, DRIVER, 1), "r1", [CHUNK]))
    assert [copied.outcome.error_class for copied in told] == ["spec"]
    assert "NOT_SET_ON_THIS_EXECUTOR" in told[0].outcome.reason
