"""What becomes of a batch when an endpoint refuses, breaks off or is away."""

import socket
import threading
from contextlib import suppress

import pytest

from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError
from airflow_provider_deltaforge.testing.sinks import messages
from tests.sinks.http import endpoint as endpoints
from tests.sinks.http.endpoint import Endpoint, numbers, rows, says
from tests.waiting import wait_until


class TestAnswers:
    """What the status of an answer does to a batch of three, whose second one gets it."""

    @pytest.mark.parametrize("status", [401, 402, 403, 407, 511])
    def test_credentials(self, endpoint, opened, status):
        endpoint.acts = [204, status]

        with pytest.raises(AccessError, match=rf"{status} .*'headers'"):
            opened(endpoint).write(rows(endpoint, range(3)))

        assert numbers(endpoint) == [0]

    @pytest.mark.parametrize(
        ("status", "advice"),
        [
            (301, "redirects are not followed"),
            (308, "redirects are not followed"),
            (405, "'method'"),
            (406, "check 'url'"),
            (410, "correct 'url'"),
            (426, "correct 'url'"),
            (505, "HTTP/1.1"),
            (415, "application/json.*'encoding'"),
            (501, "'method'"),
        ],
    )
    def test_a_wrong_document(self, endpoint, opened, status, advice):
        endpoint.acts = [204, says(status)]

        with pytest.raises(FatalError, match=f"{status} .*{advice}"):
            opened(endpoint).write(rows(endpoint, range(3)))

        assert numbers(endpoint) == [0]

    @pytest.mark.parametrize("status", [404, 408, 421, 423, 425, 429, 500, 502, 503, 504, 599])
    def test_later(self, endpoint, opened, status):
        endpoint.acts = [204, status]
        writer, batch = opened(endpoint), rows(endpoint, range(3))

        with pytest.raises(RetryableError, match=rf"{status}.*1 of 3 events are through"):
            writer.write(batch)
        assert list(writer.write(rows(endpoint, range(3)))) == []

        assert numbers(endpoint) == [0, 1, 2]

    @pytest.mark.parametrize(
        ("status", "kind"),
        [(400, "refused"), (409, "refused"), (413, "message_too_large"), (422, "refused")],
    )
    def test_one_event(self, endpoint, opened, status, kind):
        endpoint.acts = [204, status]

        rejections = opened(endpoint).write(rows(endpoint, range(3)))

        assert [(each.event_row, each.kind) for each in rejections] == [(1, kind)]
        assert str(status) in rejections[0].reason
        assert numbers(endpoint) == [0, 2]

    def test_what_was_refused_before_a_failure_is_reported_with_the_rest(self, endpoint, opened):
        endpoint.acts = [422, 503]
        writer, batch = opened(endpoint), rows(endpoint, range(3))
        with pytest.raises(RetryableError):
            writer.write(batch)

        assert [each.event_row for each in writer.write(batch)] == [0]
        assert numbers(endpoint) == [1, 2]

    def test_another_batch_begins_anew(self, endpoint, opened):
        endpoint.acts = [204, 503]
        writer = opened(endpoint)
        with pytest.raises(RetryableError):
            writer.write(rows(endpoint, range(3)))

        writer.write(rows(endpoint, range(1, 4)))

        assert numbers(endpoint) == [0, 1, 2, 3]

    def test_nothing_secret_is_repeated(self, endpoint, opened):
        endpoint.judge = lambda _: lambda handler: handler.answer(500, b"hush-body")
        settings = {"url": f"{endpoint.url}/hush-path", "headers": {"X-Token": "hush-header"}}

        with pytest.raises(RetryableError) as caught:
            opened(endpoint, **settings).write(rows(endpoint, range(1), "/hush-path"))

        assert "hush" not in str(caught.value)

    def test_a_redirect_takes_no_credentials_elsewhere(self, endpoint, opened):
        other = Endpoint()
        endpoint.judge = lambda _: says(307, Location=f"{other.url}/in")

        with pytest.raises(FatalError, match="redirects"):
            opened(endpoint, headers={"X-Token": "t"}).write(rows(endpoint, range(1)))

        other.stop()
        assert other.requests == []


class TestRest:
    """How ``Retry-After`` is obeyed."""

    def test_it_is_waited_for(self, endpoint, opened):
        endpoint.acts = [says(429, Retry_After="1")]
        writer, batch = opened(endpoint), rows(endpoint, range(2))
        with pytest.raises(RetryableError, match="1 s of rest"):
            writer.write(batch)

        assert list(writer.write(batch)) == []
        assert numbers(endpoint) == [0, 1]

    def test_a_long_one_is_no_hang(self, endpoint, opened):
        endpoint.acts = [says(503, Retry_After="86400")]
        writer, batch = opened(endpoint, send_timeout_secs=1), rows(endpoint, range(2))
        with pytest.raises(RetryableError, match="3600 s of rest"):
            writer.write(batch)

        with pytest.raises(RetryableError, match="more of rest"):
            writer.write(batch)

        assert len(endpoint.requests) == 1


class TestArraysThatAreRefused:
    def test_the_bad_one_is_found_and_the_others_arrive_in_order(self, endpoint, opened):
        endpoint.judge = lambda request: 422 if b'{"n":13}' in request.body else 204

        rejections = opened(endpoint, batch_mode=True).write(rows(endpoint, range(40)))

        assert [(each.event_row, each.kind) for each in rejections] == [(13, "refused")]
        assert numbers(endpoint) == [n for n in range(40) if n != 13]

    def test_a_failure_while_looking_for_it_loses_and_repeats_nothing(self, endpoint, opened):
        endpoint.acts = [422, 204, 422, 503]
        endpoint.judge = lambda request: 422 if b'{"n":5}' in request.body else 204
        writer, batch = opened(endpoint, batch_mode=True), rows(endpoint, range(8))
        with pytest.raises(RetryableError, match="4 of 8"):
            writer.write(batch)

        assert [each.event_row for each in writer.write(batch)] == [5]
        assert numbers(endpoint) == [n for n in range(8) if n != 5]

    def test_a_limit_is_learned(self, endpoint, opened):
        endpoint.judge = lambda request: 413 if len(request.body) > 100 else 204
        writer = opened(endpoint, batch_mode=True)
        writer.write(rows(endpoint, range(30)))
        before = len(endpoint.requests)

        assert list(writer.write(rows(endpoint, range(30, 60)))) == []

        assert numbers(endpoint) == list(range(60))
        assert all(len(each.body) <= 100 for each in endpoint.requests[before:])

    @pytest.mark.parametrize("is_rude", [False, True])
    def test_an_endpoint_that_does_not_read_large_ones_gets_smaller_ones(
        self, endpoint, opened, is_rude
    ):
        endpoint.bytes_max, endpoint.is_rude = 300_000, is_rude
        values = [b'{"n":%d,"pad":"%b"}' % (n, b"x" * 100_000) for n in range(40)]
        batch = messages([(f"{endpoint.url}/in", b"k", each) for each in values])
        writer = opened(endpoint, batch_mode=True)

        for _ in range(40):
            with suppress(RetryableError):
                assert list(writer.write(batch)) == []
                break

        assert endpoint.values() == values


class TestConnectionsThatBreak:
    def test_one_that_was_closed_while_idle_is_opened_again(self, endpoint, opened):
        endpoint.judge = lambda _: endpoints.takes_and_hangs_up

        for n in range(10):
            opened(endpoint).write(rows(endpoint, range(n * 3, n * 3 + 3)))

        assert numbers(endpoint) == list(range(30))

    def test_one_that_is_closed_under_a_request_is_tried_once_more(self, endpoint, opened):
        endpoint.acts = [204, endpoints.hangs_up]

        assert list(opened(endpoint).write(rows(endpoint, range(3)))) == []

        assert numbers(endpoint) == [0, 1, 2]
        keys = [each.headers["idempotency-key"] for each in endpoint.requests]
        assert keys[1] == keys[2]

    def test_a_new_one_that_is_closed_is_an_outage(self, endpoint, opened):
        endpoint.acts = [endpoints.hangs_up]
        writer, batch = opened(endpoint), rows(endpoint, range(2))

        with pytest.raises(RetryableError, match="up and reachable"):
            writer.write(batch)
        writer.write(batch)

        assert numbers(endpoint) == [0, 1]

    def test_half_an_answer_is_none(self, endpoint, opened):
        endpoint.acts = [endpoints.breaks_off]
        writer, batch = opened(endpoint), rows(endpoint, range(2))

        with pytest.raises(RetryableError):
            writer.write(batch)
        writer.write(batch)

        assert numbers(endpoint) == [0, 1]

    @pytest.mark.parametrize("act", [endpoints.stays_silent, endpoints.drips])
    def test_a_slow_answer_is_bounded(self, endpoint, opened, act):
        endpoint.acts = [act]
        writer, batch = opened(endpoint, send_timeout_secs=1), rows(endpoint, range(2))

        with pytest.raises(RetryableError, match="does not answer within 1 s"):
            writer.write(batch)
        writer.write(batch)

        assert numbers(endpoint) == [0, 1]

    def test_an_endpoint_that_reads_nothing_is_bounded(self, endpoint, opened):
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            place = f"http://127.0.0.1:{deaf.getsockname()[1]}/in"
            writer = opened(endpoint, url=place, send_timeout_secs=1)

            with pytest.raises(RetryableError, match="within 1 s"):
                writer.write(messages([(place, b"k", b"x" * 20_000_000)]))

    def test_a_restart_loses_and_repeats_nothing(self, endpoint, opened):
        writer, batch = opened(endpoint), rows(endpoint, range(5, 10))
        writer.write(rows(endpoint, range(5)))
        endpoint.stop()
        for _ in range(2):
            with pytest.raises(RetryableError, match="reachable"):
                writer.write(batch)
        endpoint.start()

        writer.write(batch)

        assert numbers(endpoint) == list(range(10))

    def test_a_long_answer_is_not_read(self, endpoint, opened):
        def talks(handler):
            handler.send_response(200)
            handler.send_header("Content-Length", str(1 << 40))
            handler.end_headers()
            while True:
                handler.wfile.write(b"x" * 65_536)

        endpoint.acts = [talks]

        assert list(opened(endpoint).write(rows(endpoint, range(2)))) == []

        assert numbers(endpoint) == [1]

    def test_a_write_can_be_broken_off(self, endpoint, opened):
        endpoint.judge = lambda _: endpoints.stays_silent
        writer = opened(endpoint, send_timeout_secs=3600)
        said = []

        def write():
            try:
                writer.write(rows(endpoint, range(3)))
            except RetryableError as error:
                said.append(str(error))

        thread = threading.Thread(target=write)
        thread.start()
        wait_until(lambda: endpoint.requests)
        writer.abandon()
        thread.join()

        assert "asked to end" in said[0]
        assert len(endpoint.requests) == 1
