import pytest

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sinks import stdout
from airflow_provider_deltaforge.sinks.stdout import StdoutSink
from airflow_provider_deltaforge.testing.sinks import SinkContract, messages


class TestStdoutSink(SinkContract):
    @pytest.fixture
    def sink(self):
        return StdoutSink()

    @pytest.fixture
    def place(self):
        return "stdout"

    @pytest.fixture
    def stored(self, capfdbinary):
        return lambda: capfdbinary.readouterr().out.split(b"\n")[:-1]


def test_a_topic_of_its_own_is_shown_before_each_value(capfdbinary):
    writer = StdoutSink(topic="${source.table}").open("p")

    writer.write(messages([("orders", None, b"{}"), ("items", None, None)]))

    assert capfdbinary.readouterr().out == b"orders\t{}\nitems\tnull\n"


def test_a_reader_that_went_away_is_fatal(monkeypatch):
    def broken(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(stdout.os, "write", broken)

    with pytest.raises(FatalError, match="Broken pipe"):
        StdoutSink().open("p").write(messages([("t", None, b"{}")]))
