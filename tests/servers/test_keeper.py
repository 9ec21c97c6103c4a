"""No server outlives the process that started it, however that ends."""

import os
import signal
import subprocess
import sys

import pytest

from tests.servers.keeper import Keeper, kill_session, members
from tests.waiting import wait_for

_SHELL = "sleep 600 & sleep 600"

_OWNER = f"""
import subprocess, time
from tests.servers.keeper import Keeper
keeper = Keeper()
session = subprocess.Popen(["sh", "-c", "{_SHELL}"], start_new_session=True)
keeper.add(session.pid)
print(session.pid, flush=True)
time.sleep(600)
"""


def started():
    return subprocess.Popen(["sh", "-c", _SHELL], start_new_session=True)


def test_a_session_ends_with_an_owner_that_was_killed():
    owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE)
    try:
        session = int(owner.stdout.readline())
        assert members({session})
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()

    wait_for("the end of the session", lambda: not members({session}))


def test_a_session_that_is_killed_leaves_no_child():
    leader = started()
    wait_for("the children", lambda: len(members({leader.pid})) == 3)

    kill_session(leader.pid)
    leader.wait()

    assert members({leader.pid}) == []


def test_a_forgotten_session_is_left_alone():
    leader, keeper = started(), Keeper()
    try:
        keeper.add(leader.pid)
        keeper.forget(leader.pid)
        keeper.close()

        assert leader.poll() is None
        assert os.getsid(leader.pid) == leader.pid
    finally:
        kill_session(leader.pid)
        leader.wait()


_STEP = """
import signal, sys
from tests.servers.undisturbed import undisturbed
{handler}
with undisturbed():
    signal.raise_signal(signal.SIGTERM)
    print("known", flush=True)
print("not reached")
"""


@pytest.mark.parametrize(
    ("handler", "code"),
    [
        ("", -signal.SIGTERM),
        ("signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))", 7),
    ],
)
def test_a_request_to_end_waits_until_a_child_is_known(handler, code):
    command = [sys.executable, "-c", _STEP.format(handler=handler)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (code, "known\n"), done.stderr
