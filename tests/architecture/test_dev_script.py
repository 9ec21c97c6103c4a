"""``dev.sh`` lists what it can do, and says exactly what a machine lacks."""

import re
import subprocess

import pytest

from tests.architecture.probe import CHECKOUT

_SCRIPT = (CHECKOUT / "dev.sh").read_text()
_LACKING = "has() { return 1; }; compgen() { return 1; }; java_is_there() { return 1; };"
_EXAMPLE_VERBS = [
    "demo",
    "test",
    "check",
    "fmt",
    "up",
    "down",
    "ps",
    "bench",
    "prove",
    "help",
    "k-create",
    "k-list",
    "k-consume",
    "k-produce",
    "k-inspect",
    "redis-cli",
    "redis-read",
    "nats-stream-add",
    "nats-sub",
    "mysql-sh",
    "pg-sh",
    "lint",
    "cov",
    "docs",
    "build",
    "run",
    "build-release",
    "docs-build",
    "release-check",
    "docker",
    "docker-debug",
    "docker-test",
    "docker-test-debug",
    "docker-all",
    "docker-shell",
    "docker-multi-setup",
    "docker-multi",
]


def bash(program: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that has the functions of ``dev.sh``."""
    command = ["bash", "-c", f"source ./dev.sh; {program}"]
    return subprocess.run(command, check=False, cwd=CHECKOUT, capture_output=True, text=True)


def test_help_lists_every_verb_and_no_other():
    listed = set(re.findall(r"^  ([a-z-]+) ", bash("help").stdout, re.MULTILINE))
    arms = re.findall(r"^    ([a-z |-]+)\) (?:setup )?;;$", _SCRIPT, re.MULTILINE)
    known = {verb for arm in arms for verb in arm.split(" | ")}

    assert listed == known
    assert set(_EXAMPLE_VERBS) <= known | {"help"}


def test_an_unknown_verb_is_refused():
    done = bash("main no-such-verb")

    assert done.returncode == 1
    assert "unknown verb 'no-such-verb'" in done.stderr


@pytest.mark.parametrize(
    ("server", "package"),
    [
        ("mariadb", "mariadb-server"),
        ("postgres", "postgresql"),
        ("kafka", "default-jre-headless"),
        ("redis", "redis-server"),
        ("nats", "nats-server"),
    ],
)
def test_without_root_rights_the_command_to_run_is_named(server, package):
    done = bash(f"{_LACKING} id() {{ echo 1000; }}; need_server {server}")

    assert done.returncode == 1
    assert f"Run: sudo apt-get install --no-install-recommends {package}" in done.stderr


def test_without_apt_the_packages_are_named():
    hidden = 'command() { [ "$2" != apt-get ] && builtin command "$@"; };'
    done = bash(f"{_LACKING} {hidden} need_server mariadb")

    assert done.returncode == 1
    assert "Debian's packages: mariadb-server" in done.stderr


@pytest.mark.parametrize("status", [0, 1])
def test_an_installed_server_is_not_started_and_the_machine_stays_as_it_was(status, tmp_path):
    policy, log = tmp_path / "policy-rc.d", tmp_path / "setup.log"
    apt = f'apt-get() {{ echo "$*" >&2; "$POLICY"; echo "policy $?" >&2; return {status}; }};'
    places = f"POLICY={policy}; SETUP_LOG={log};"
    done = bash(f"{_LACKING} id() {{ echo 0; }}; {places} {apt} apt_install reason some-server")

    assert done.returncode == status
    assert "policy 101" in log.read_text()
    assert ("policy 101" in done.stderr) == (status != 0)
    assert not policy.exists()


def test_a_policy_of_somebody_else_stays(tmp_path):
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 0\n")
    places = f"POLICY={policy}; SETUP_LOG={tmp_path}/setup.log;"
    done = bash(f"id() {{ echo 0; }}; {places} apt-get() {{ :; }}; apt_install reason x")

    assert done.returncode == 0
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"


@pytest.mark.parametrize(("version", "enough"), [("17.0.15", 0), ("21", 0), ("11.0.2", 1)])
def test_java_is_old_or_new_enough(version, enough):
    java = f"""java() {{ echo 'openjdk version "{version}" 2025-04-15' >&2; }};"""

    assert bash(f"{java} java_is_there").returncode == enough


def test_a_long_step_is_one_line_and_its_output_is_kept_for_failures(tmp_path):
    log = tmp_path / "new" / "setup.log"
    steps = "quietly one printf 'noise\\n'; quietly two bash -c 'echo reason; exit 3' || echo $?"
    done = bash(f"SETUP_LOG={log}; {steps}")

    assert done.stderr.splitlines()[:2] == ["── one", "── two"]
    assert done.stderr.endswith("reason\n")
    assert done.stdout == "3\n"
    assert "noise" in log.read_text()


def test_the_demo_asks_for_nothing_but_java():
    stubs = "setup() { :; }; need_java() { echo java; }; need_server() { echo $1; }; PY=echo;"

    assert bash(f"{stubs} main demo --ui").stdout == "java\n-m tests.demo --ui\n"


def test_continuous_integration_runs_the_same_script():
    assert "exec ./dev.sh test" in (CHECKOUT / ".ci" / "run").read_text()


def test_up_starts_what_the_documents_need():
    stubs = "setup() { :; }; need_server() { :; }; PY=echo;"

    started = bash(f"{stubs} main up").stdout.split()
    assert started == ["-m", "tests.servers", "up", "mysql", "postgres", "kafka", "redis", "nats"]
