"""A transaction that stays open holds nobody up, and arrives whole when it commits.

How long it stays open does not matter to what is shown here; ``./dev.sh prove open_transaction``
holds it for ten minutes.
"""

from tests.e2e import pipeline_run, postgres_run, postgres_shop, shop
from tests.e2e.open_transaction import OPEN_ROWS, OpenTransaction, statuses, wait_confirmed
from tests.engine.scripted_run import kill

PAUSE_S = 0.03


def passes_by(run, writers):
    """Let traffic pass an open transaction, kill the driver under it, commit, and judge."""
    driver = run.start()
    run.wait_status("running")
    with writers:
        opened = OpenTransaction(run)
        opened.pass_by(20)
        if opened.opened_at is not None:
            wait_confirmed(run, opened.opened_at)
        assert statuses(run) == opened.beside

        kill(driver.pid)
        driver.wait()
        opened.pass_by_unread(20)
        driver = run.start()
        run.wait_status("running")
        opened.pass_by(20)
        opened.commit()
        opened.pass_by(1)
    run.wait_caught_up()
    assert run.stop(driver) == 0

    arrived = statuses(run)
    assert list(dict.fromkeys(arrived)) == [*opened.beside[:-1], "open", opened.beside[-1]]
    first = arrived.index("open")
    assert arrived[first : first + len(OPEN_ROWS)] == ["open"] * len(OPEN_ROWS)
    assert run.judge() == []


def test_mysql(tmp_path, mysql_server, kafka_server):
    run = pipeline_run.run_in(tmp_path, mysql_server, kafka_server, "open_mysql")
    passes_by(run, shop.Writers(mysql_server, run.name, pause_s=PAUSE_S))


def test_postgresql(tmp_path, postgres_server, kafka_server):
    with postgres_run.run_in(tmp_path, postgres_server, kafka_server, "open_postgres") as run:
        passes_by(run, postgres_shop.Writers(postgres_server, run.name, pause_s=PAUSE_S))
