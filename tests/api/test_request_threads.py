"""Threads that a hanging store takes: others are turned away, and not kept waiting."""

import threading
import time

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from airflow_provider_deltaforge.api import errors
from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.api.threads import RequestThreads


@pytest.fixture
def hanging():
    """A server with one thread for requests, and what lets its hanging requests go on."""
    released = threading.Event()
    app, router = FastAPI(), APIRouter()

    @router.get("/hang")
    def hang(answer: str = "late"):
        released.wait(20)
        return answer

    @app.get("/elsewhere")
    def elsewhere():
        return "at once"

    app.include_router(RequestThreads(1, wait_s=0.3).answer(router))
    errors.install(app)
    with serving(app, "127.0.0.1:0") as url:
        yield url, released
        released.set()


def test_a_request_that_hangs_takes_no_thread_of_others(hanging):
    url, released = hanging
    answers = []
    first = threading.Thread(target=lambda: answers.append(httpx.get(f"{url}/hang?answer=x")))
    first.start()
    time.sleep(0.2)
    turned_away = httpx.get(f"{url}/hang")
    assert (turned_away.status_code, turned_away.json()["code"]) == (503, "BUSY")
    assert httpx.get(f"{url}/elsewhere").json() == "at once"
    released.set()
    first.join()
    assert [answer.json() for answer in answers] == ["x"]
    assert httpx.get(f"{url}/hang").json() == "late"
