"""The Dockerfiles name only what is there; no container engine runs here."""

import inspect
import re
import shlex

import pytest
import yaml

from airflow_provider_deltaforge.cli import app, options, run, serve
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import ENVIRONMENT, StoreLocation
from tests.architecture.probe import CHECKOUT
from tests.architecture.test_dev_script import bash

_STEP = re.compile(r"^([A-Z]+) ((?:.*\\\n)*.*)$", re.MULTILINE)


def steps(name):
    """Return the steps of one of our Dockerfiles."""
    return steps_of((CHECKOUT / name).read_text())


def steps_of(text):
    """Return (instruction, arguments) of a Dockerfile, lines that go on joined."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    found = [(word, rest.replace("\\\n", " ")) for word, rest in _STEP.findall(text)]
    known = "ARG FROM WORKDIR RUN COPY ENV USER VOLUME EXPOSE STOPSIGNAL HEALTHCHECK CMD ENTRYPOINT"
    assert {word for word, _ in found} <= set(known.split())
    return found


IMAGE = steps("Dockerfile")
DEBUG = steps("Dockerfile.debug")
RUNTIME = IMAGE[max(i for i, (word, _) in enumerate(IMAGE) if word == "FROM") :]


def environment():
    pairs = [rest for word, rest in RUNTIME if word == "ENV"]
    return dict(part.split("=", 1) for rest in pairs for part in shlex.split(rest))


def test_what_is_copied_is_there_and_sent_to_the_builder():
    ignored = (CHECKOUT / ".dockerignore").read_text().splitlines()
    sources = [
        source
        for word, rest in IMAGE
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert len(sources) >= 6
    for source in sources:
        assert (CHECKOUT / source).exists(), source
        assert f"!{source.split('/')[0]}" in ignored, source
    # What the image of docker-compose.airflow.yml is built of comes from the same folder.
    wheel = (CHECKOUT / "pyproject.toml").read_text()
    assert set(re.findall(r'^"(\w+)" = "airflow_provider', wheel, re.MULTILINE)) <= set(sources)


def test_stages_follow_each_other_and_are_of_one_python():
    froms = [rest.split() for word, rest in IMAGE if word == "FROM"]
    assert [place for place, *_ in froms] == ["python:${PYTHON}-slim-bookworm"] * 2
    names = [words[-1] for words in froms]
    copied = {name for _, rest in IMAGE for name in re.findall(r"--from=(\w+)", rest)}
    assert copied <= set(names[:-1])
    [version] = re.findall(r"^ARG PYTHON=(3\.\d+)$", (CHECKOUT / "Dockerfile").read_text(), re.M)
    assert version in {"3.10", "3.11", "3.12", "3.13"}


def test_every_extra_and_command_exists():
    text = " ".join(rest for _, rest in IMAGE)
    [extras] = re.findall(r"EXTRAS=([\w,]+)", text)
    pyproject = (CHECKOUT / "pyproject.toml").read_text()
    for extra in extras.split(","):
        assert f"\n{extra} = [" in pyproject, extra
    shipped = set(re.findall(r"^(\w+) = \[", pyproject, re.MULTILINE))
    assert shipped - set(extras.split(",")) >= {"airflow", "spark"}
    [command] = re.findall(r"/bin/deltaforge (\w+)", text)
    assert command in {known.callback.__name__ for known in app.app.registered_commands}


def test_it_runs_as_nobody_special_and_keeps_its_state_in_the_volume():
    [user] = [rest for word, rest in RUNTIME if word == "USER"]
    assert int(user) > 0
    made = " ".join(rest for word, rest in RUNTIME if word == "RUN")
    assert f"--uid {user} " in made
    [volume] = [rest for word, rest in RUNTIME if word == "VOLUME"]
    file = StoreLocation.from_dsn(environment()[ENVIRONMENT]).file()
    assert f'["{file.parent}"]' == volume
    assert f"-o deltaforge -g deltaforge -m 0700 {file.parent}" in made


def test_its_variables_are_options_of_the_command():
    variables = {name for name in environment() if name.startswith("DELTAFORGE_")}
    known = {options.API_ADDR, options.METRICS_ADDR, options.LOCAL, ENVIRONMENT}
    assert variables == known
    for command, wanted in ((app._root, 3), (serve.serve, 3), (run.run, 2)):
        annotations = [p.annotation for p in inspect.signature(command).parameters.values()]
        taken = {name for annotation in annotations for name in _variables_of(annotation)}
        assert len(variables & taken - {ENVIRONMENT}) == wanted, command


def _variables_of(annotation):
    for option in getattr(annotation, "__metadata__", ()):
        yield getattr(option, "envvar", None)


def test_ports_and_health_are_those_of_the_command():
    [ports] = [rest for word, rest in RUNTIME if word == "EXPOSE"]
    addresses = [environment()[name] for name in (options.API_ADDR, options.METRICS_ADDR)]
    assert [address.rpartition(":")[2] for address in addresses] == ports.split()
    [health] = [rest for word, rest in RUNTIME if word == "HEALTHCHECK"]
    assert "/healthz" in health
    compile(yaml.safe_load(health.partition(" CMD ")[2])[2], "healthcheck", "exec")
    [entry] = [yaml.safe_load(rest) for word, rest in RUNTIME if word == "ENTRYPOINT"]
    assert entry == ["tini", "--", "deltaforge"]
    assert "deltaforge = " in (CHECKOUT / "pyproject.toml").read_text()


def test_the_debug_image_is_the_same_with_tools():
    assert [rest for word, rest in DEBUG if word == "FROM"] == ["${BASE} AS debug"]
    users = [rest for word, rest in DEBUG if word == "USER"]
    assert (users[0], users[-1]) == ("root", "10001")
    assert {word for word, _ in DEBUG} == {"ARG", "FROM", "USER", "RUN"}


def test_the_pipeline_of_its_test_is_valid():
    load((CHECKOUT / "tests" / "architecture" / "image.yaml").read_text()).refuse_unbuilt()


@pytest.mark.parametrize(
    ("verb", "does"),
    [
        ("docker", ["build -t deltaforge:local ."]),
        (
            "docker-debug",
            [
                "image inspect deltaforge:local",
                "build -t deltaforge:local-debug -f Dockerfile.debug "
                "--build-arg BASE=deltaforge:local .",
            ],
        ),
        ("docker-shell", ["run --rm -it --entrypoint /bin/bash deltaforge:local-debug"]),
        (
            "docker-multi --push",
            [
                "buildx build --builder deltaforge --platform linux/amd64,linux/arm64 "
                "-t deltaforge:local --push ."
            ],
        ),
    ],
)
def test_the_verbs_call_docker(verb, does, tmp_path):
    fake = tmp_path / "docker"
    fake.write_text('#!/bin/sh\n[ "$1" = info ] || echo "$*"\n')
    fake.chmod(0o755)
    done = bash(f"PATH={tmp_path}:$PATH; main {verb}")
    said = [line for line in done.stdout.splitlines() if line not in does[:0]]
    wanted = does if "inspect" not in does[0] else does[1:]
    assert (said[-len(wanted) :], done.returncode) == (wanted, 0), done.stderr


def test_without_a_daemon_the_verbs_say_so(tmp_path):
    fake = tmp_path / "docker"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    done = bash(f"PATH={tmp_path}:$PATH; main docker-all")
    assert (done.returncode, "no docker daemon answers" in done.stderr) == (1, True)


def test_a_pipeline_is_tried_until_it_is_healthy(tmp_path):
    fake = tmp_path / "docker"
    fake.write_text(
        '#!/bin/sh\ncase "$1" in run) echo box ;; inspect) echo "${HEALTH:-healthy}" ;; esac\n'
    )
    fake.chmod(0o755)
    assert "is healthy" in bash(f"PATH={tmp_path}:$PATH; main docker-test").stderr
    ill = bash(f"export HEALTH=unhealthy; PATH={tmp_path}:$PATH; main docker-test")
    assert (ill.returncode, "deltaforge:local is unhealthy" in ill.stderr) == (1, True)
