"""What a Spark application refuses before it drives anything; no JVM is needed for that."""

from types import SimpleNamespace

import pytest

from airflow_provider_deltaforge.engine.base.outcome import EXIT_SPEC
from airflow_provider_deltaforge.engine.spark import application, session


@pytest.mark.parametrize("main", [application.stream_main, application.snapshot_main])
def test_a_store_that_executors_cannot_open_is_refused(main, tmp_path, monkeypatch, capsys):
    stopped = []
    found = SimpleNamespace(
        sparkContext=SimpleNamespace(master="spark://h:7077", applicationId="app"),
        stop=lambda: stopped.append(True),
    )
    monkeypatch.setattr(session, "session", lambda name: found)
    monkeypatch.setattr(application, "stay_lean", lambda: None)
    # It would end this process together with its parent.
    monkeypatch.setattr(application, "end_with_parent", lambda: None)
    monkeypatch.setenv("DELTAFORGE_STORE", f"sqlite:///{tmp_path}/state.db")

    code = main(["--pipeline", "orders", "--generation", "1"])

    assert code == EXIT_SPEC
    logged = capsys.readouterr().err
    assert "is a file of this host" in logged
    assert "use postgresql://" in logged
    assert stopped
    assert not (tmp_path / "state.db").exists()
