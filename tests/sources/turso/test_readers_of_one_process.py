"""Several readers of one file in one process, beside a writer in another: none ends the others."""

import subprocess
import sys

from airflow_provider_deltaforge.sources.turso.files import FileDatabase

WRITER = """
import sys, time, turso

connection = turso.connect(sys.argv[1], experimental_features="multiprocess_wal")
connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
connection.commit()
print("ready", flush=True)
while True:
    connection.execute("INSERT INTO t (v) VALUES (?)", ("x" * 200,))
    connection.commit()
    time.sleep(0.002)
"""

READERS = """
import sys, threading, time
from pathlib import Path
from airflow_provider_deltaforge.sources.turso.files import FileDatabase

path, end = Path(sys.argv[1]), time.monotonic() + 3
wrong = []

def read():
    while time.monotonic() < end:
        database = FileDatabase(path, "turso")
        with database.view():
            count = database.value("SELECT count(*) FROM t")
            time.sleep(0.003)
            if database.value("SELECT count(*) FROM t") != count:
                wrong.append(count)
        database.close()

threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("wrong:", wrong)
"""


def test_a_view_begins_where_another_process_has_just_made_a_table(tmp_path, other_process):
    """Turso's engine fails there, if it had read the schema of before."""
    path = tmp_path / "shop.db"
    made = "import turso; c = turso.connect(PATH, experimental_features='multiprocess_wal')"
    other_process(f"{made}; c.execute('CREATE TABLE t (id INTEGER)'); c.commit()", path)
    database = FileDatabase(path, "turso")
    assert database.value("SELECT count(*) FROM t") == 0
    for number in range(3):
        other_process(f"{made}; c.execute('CREATE TABLE t{number} (id INTEGER)'); c.commit()", path)
        with database.view():
            assert database.value(f"SELECT count(*) FROM t{number}") == 0
    database.close()


def test_a_reader_is_not_ended_by_another_that_opens_the_file(tmp_path):
    """Turso's engine aborts the whole process when one opens the file while another reads."""
    path = str(tmp_path / "shop.db")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            readers = subprocess.run(
                [sys.executable, "-c", READERS, path],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        finally:
            writer.kill()
    assert (readers.returncode, readers.stdout) == (0, "wrong: []\n"), readers.stderr[:2000]
