"""Tokens for Amazon MSK are made in a thread of librdkafka's."""

import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

from airflow_provider_deltaforge.sinks.kafka import msk
from tests.architecture.probe import CHECKOUT
from tests.waiting import PATIENCE_S

PROGRAM = """
import gc, sys, threading, time
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from confluent_kafka import Producer
from airflow_provider_deltaforge.sinks.kafka import msk

class Holder:
    pass

holders, made = [], []

def sign(region):
    made.append(threading.current_thread())
    if len(made) == 3:  # The first ones are made while the client is.
        holders.clear()
        kept = [[number] for number in range(100_000)]  # As AWS's library does.
        made.append(kept)
    return "token", int((time.time() + 2) * 1000)

MSKAuthTokenProvider.generate_auth_token = sign
holder = Holder()
holder.producer = Producer({
    "bootstrap.servers": "127.0.0.1:1", "security.protocol": "sasl_plaintext", "log_level": 0,
    "sasl.mechanism": "OAUTHBEARER", "oauth_cb": msk.tokens("s", "eu-north-1", {}),
})
holder.itself = holder
holders.append(holder)
del holder
while len(made) < 4:
    time.sleep(0.05)
time.sleep(0.2)
gc.collect()
print(gc.isenabled(), made[1] is threading.current_thread())
"""


def test_no_client_is_freed_in_its_own_thread():
    """It would wait there for its own end, or abort the process."""
    outcome = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert outcome.returncode == 0, outcome.stderr[-2000:]
    assert outcome.stdout.split() == ["True", "False"]


def test_one_that_waits_for_amazon_holds_up_no_other_and_the_collector_comes_back(monkeypatch):
    answers = {"fast": threading.Event(), "slow": threading.Event()}
    for answer in answers.values():
        answer.set()  # The first tokens are made at once.

    def sign(region):
        assert answers[region].wait(PATIENCE_S)
        return region, int(time.time() * 1000)

    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token", sign)
    slow, fast = (msk.tokens("s", region, {}) for region in ("slow", "fast"))
    slow(""), fast("")
    answers["slow"].clear()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(slow, "")
        assert fast("")[0] == "fast"
        assert not waiting.done()
        answers["slow"].set()
        assert waiting.result(PATIENCE_S)[0] == "slow"
    assert gc.isenabled()


def test_the_collector_comes_back_when_amazon_refuses(monkeypatch):
    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token", lambda _: ("token", 0))
    token = msk.tokens("s", "eu-north-1", {})
    token("")

    def refuse(_):
        assert not gc.isenabled()
        raise OSError("no route")

    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token", refuse)
    with pytest.raises(OSError, match="no route"):
        token("")
    assert gc.isenabled()
