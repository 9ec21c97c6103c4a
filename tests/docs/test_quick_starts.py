"""The quick starts of the sinks' pages do what they show, on the servers of the tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, Block, fences, lines, tokens
from tests.docs.shell import Shell, matches, shown_lines
from tests.servers.process import free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.long


def quick_start(page):
    """Return the blocks below the heading of that name."""
    parsed = tokens(DOCS / page)
    titles = [n for n, token in enumerate(parsed) if token.type == "heading_open"]
    [start] = [n for n in titles if parsed[n + 1].content == "Quick start"]
    end = min([n for n in titles if n > start], default=len(parsed))
    return list(fences(parsed[start:end], f"docs/{page}"))


@pytest.fixture(params=["sinks_http.md", "sinks_redis.md", "sinks_nats.md"])
def page(request):
    """A page, and what stands in place of the addresses on it."""
    if request.param == "sinks_http.md":
        return request.param, {"9000": str(free_port())}
    if request.param == "sinks_redis.md":
        port = request.getfixturevalue("redis_server").port
        return request.param, {
            "127.0.0.1:6379": f"127.0.0.1:{port}",
            "Redis()": f"Redis(port={port})",
        }
    return request.param, {
        "127.0.0.1:4222": f"127.0.0.1:{request.getfixturevalue('nats_server').port}"
    }


def test_a_quick_start_shows_what_its_page_says(page, tmp_path):
    name, places = page
    shell = Shell(tmp_path)
    consoles = []
    for block in quick_start(name):
        text = block.text
        for old, new in places.items():
            text = text.replace(old, new)
        if named := re.match(r"# ([\w.]+)\n", text):
            (tmp_path / named[1]).write_text(text)
        elif block.language == "console":
            consoles.append(Block(block.page, block.line, "console", text))
    first = consoles[0]
    make, consume, run = lines(first)
    [*_, (_, shown)] = shown_lines(first)
    try:
        assert shell.run(make)[0] == 0
        shell.start(consume.removesuffix(" &").removesuffix("&"))
        shell.start(f"{re.sub(r' *#.*', '', run)} --api-addr off")
        shell.ask("deltaforge status", ["…  running  running  …"])
        assert shell.run(make)[0] == 0
        wait_for("the rows", lambda: matches(shown, shell.log.read_text()), 30)
    finally:
        shell.close()
    assert subprocess.run(["grep", "-c", "Traceback", shell.log], check=False).returncode == 1


@pytest.mark.spark
def test_a_query_shows_what_the_page_of_the_dataframe_says(tmp_path):
    pages = [*quick_start("sinks_http.md"), *quick_start("dataframe.md")]
    for block in pages:
        if named := re.match(r"# ([\w.]+)\n", block.text):
            (tmp_path / named[1]).write_text(block.text)
    [console] = [block for block in quick_start("dataframe.md") if block.language == "console"]
    shown = [*shown_lines(console)]
    assert [line.split()[1] for line, _ in shown] == ["shop.py", "lake.py"] * 2
    # As in an environment that was activated: Spark's workers are the first Python of the path.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line, expected in shown:
        done = subprocess.run(
            [sys.executable, line.split()[1]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, matches(expected, done.stdout)) == (0, True), done.stderr[-2000:]
