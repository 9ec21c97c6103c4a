"""What the command line says when it fails."""

import pytest

from airflow_provider_deltaforge.cli import app
from airflow_provider_deltaforge.errors import AccessError

SECRET = "pl4nted"
TOLD = f"refused for mysql://df:{SECRET}@db:3306/shop; check password={SECRET}"


@pytest.mark.parametrize("error", [AccessError(TOLD), RuntimeError(TOLD)], ids=["ours", "a fault"])
def test_an_error_is_shown_without_its_secrets(monkeypatch, capsys, error):
    def fail():
        raise error

    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(SystemExit) as ended:
        app.main()
    shown = capsys.readouterr().err
    assert "mysql://df:***@db:3306/shop" in shown
    assert SECRET not in shown
    assert ended.value.code == 1
