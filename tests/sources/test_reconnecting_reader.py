"""What a log reader says of a server that answers, but not with its log."""

import time
from collections import deque

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sources.shared.reconnecting_reader import ReconnectingReader
from airflow_provider_deltaforge.sources.shared.silence import ServerSilence


class _Socket:
    def close(self):
        pass


class _Segmenter:
    def __init__(self):
        self.ready = deque()

    def restart(self):
        pass


class _Reader(ReconnectingReader[_Socket]):
    """Of a server whose every session brings what ``answers`` has next."""

    sign_of_life = "heartbeat"
    _missing = "no heartbeat, which comes every 10 s"

    def __init__(self, *answers):
        super().__init__("source", 60, lambda: False)
        self._segmenter = _Segmenter()
        self._silence = ServerSilence(0.05)
        self._answers = list(answers)

    def _connect_log(self):
        return _Socket()

    def _receive(self, socket, timeout_s):
        answer = self._answers.pop(0) if self._answers else 0
        if isinstance(answer, Exception):
            raise answer
        self._heard(answer)
        time.sleep(0.01)
        return answer


def read_for(reader, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        reader.read(0.02)
    return reader.silence()


def test_a_server_that_ends_every_session_is_quoted():
    error = RetryableError("reading the log: could not map a file to a relation")
    silent_s, why = read_for(_Reader(*[error] * 1000), 0.3)

    assert silent_s > 0.05
    assert why == f"the log connection breaks whenever it is opened: {error}"


def test_a_server_that_says_nothing_hangs_or_is_cut_off():
    _, why = read_for(_Reader(10), 0.3)

    assert why == (
        "no heartbeat, which comes every 10 s: its server hangs, or the network between is cut"
    )


def test_a_break_that_is_over_is_forgotten():
    reader = _Reader(RetryableError("cut"), 10)
    while reader._answers:
        reader.read(0.02)

    assert reader.silence() is None
    assert "hangs" in read_for(reader, 0.3)[1]
