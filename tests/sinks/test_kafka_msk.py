"""Tokens for Amazon MSK are made in a thread of librdkafka's."""

import subprocess
import sys

from tests.architecture.probe import CHECKOUT

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
