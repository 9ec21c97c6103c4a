"""``docker-compose.airflow.yml`` agrees with the package and with what its services run.

No container engine runs here; ``./dev.sh prove compose`` starts the services without one.
"""

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit
from zipfile import ZipFile

import pytest
import yaml
from compose_spec import PyCompose
from typer.main import get_command
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.control.launching.spark_submit import spark_home
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import ENVIRONMENT
from tests.architecture.probe import CHECKOUT
from tests.architecture.test_images import steps_of
from tests.servers.__main__ import SERVERS
from tests.servers.compose import COMPLETED, FILE, HEALTHY, Compose, read, words_of

COMPOSE = read()
SERVICES = COMPOSE.services
AIRFLOW = [service for name, service in SERVICES.items() if name.startswith("airflow-")]
OURS = [service for service in SERVICES.values() if service.image == "deltaforge-spark:local"]
_EXECUTOR = "AIRFLOW__CORE__EXECUTOR"
# What listens where: the defaults of the servers, or what their settings in the file say.
LISTENS = {
    "mysql": {3306},
    "postgres": {5432},
    "kafka": {9092, 39092},
    "redis": {6379},
    "nats": {4222, 8222},
    "spark-master": {7077, 6066, 8080},
    "spark-worker": {8081},
    "airflow-apiserver": {8080},
    "airflow-scheduler": {8974},
    "deltaforge": {8080},
    "prometheus": {9090},
    "grafana": {3000},
}


def test_compose_takes_the_file():
    spec = yaml.safe_load(FILE.read_text())
    assert len(PyCompose.from_yaml(yaml.safe_dump(spec))) == len(SERVICES)

    spec["services"]["redis"]["helthcheck"] = spec["services"]["redis"].pop("healthcheck")
    with pytest.raises(ValueError, match="helthcheck"):
        PyCompose.from_yaml(yaml.safe_dump(spec))


def test_each_part_is_a_service_of_its_own():
    parts = {"init", "apiserver", "scheduler", "dag-processor", "triggerer", "worker"}
    assert {service.name.removeprefix("airflow-") for service in AIRFLOW} == parts
    assert set(SERVICES) - {service.name for service in AIRFLOW} == {
        *("mysql", "postgres", "kafka", "redis", "nats", "nats-stream"),
        *("spark-master", "spark-worker", "deltaforge", "metrics-token", "prometheus", "grafana"),
    }


def test_images_are_pinned():
    for service in SERVICES.values():
        name, _, tag = service.image.partition(":")
        built = "build" in service.spec
        assert built == (tag == "local"), service.name
        assert built or re.match(r"v?\d+\.\d+(\.\d+)?(-|$)", tag), f"{name}:{tag}"
    dockerfiles = {str(service.spec["build"]) for service in (*AIRFLOW, *OURS)}
    froms = re.findall(r"FROM ([^\s\\]+)", "".join(dockerfiles))
    assert len(froms) == 3
    assert all(re.search(r":\d+\.\d+", place) for place in froms)


def test_who_waits_for_whom_can_be_waited_for():
    once = {"airflow-init", "metrics-token", "nats-stream"}
    for service in SERVICES.values():
        for needed, condition in service.needs.items():
            assert condition == (COMPLETED if needed in once else HEALTHY), service.name
            assert (SERVICES[needed].health is None) == (needed in once), needed
        ends = service.name in once
        assert service.spec["restart"] == ("on-failure" if ends else "unless-stopped")
        assert (service.health is None) == ends, service.name
    order = [service.name for service in COMPOSE.in_order()]
    assert sorted(order) == sorted(SERVICES)


def test_ports_are_published_on_loopback_only_and_those_of_dev_sh():
    published = [(name, *port) for name, each in SERVICES.items() for port in each.ports]
    assert {address for _, address, _, _ in published} == {"127.0.0.1"}
    assert len({outer for _, _, outer, _ in published}) == len(published)
    for name, _, _, inner in published:
        assert inner in LISTENS[name], name
    outers = {name: outer for name, _, outer, _ in published}
    for name in ("mysql", "postgres", "kafka", "redis", "nats"):
        assert outers[name] == SERVERS[name].port


def test_what_is_mounted_exists_and_every_volume_and_config_is_used():
    used, configs = set(), set()
    for service in SERVICES.values():
        targets = [mount.target for mount in service.mounts] + list(service.configs)
        assert len(set(targets)) == len(targets), service.name
        assert all(target.startswith("/") for target in targets)
        for mount in service.mounts:
            if mount.file is None:
                used.add(mount.source)
            else:
                assert mount.file.is_file(), mount.source
                assert mount.read_only, mount.source
        configs |= set(service.configs.values())
    assert used == set(COMPOSE.spec["volumes"])
    assert configs == set(COMPOSE.spec["configs"])


def test_addresses_lead_to_services_and_their_ports():
    found = 0
    for service in SERVICES.values():
        text = json.dumps([service.environment, service.command, service.health or []])
        for address in re.findall(r"[\w+]+://[^\s\"'\\,]+", text):
            place = urlsplit(address)
            if place.hostname in (None, "127.0.0.1", "0.0.0.0", "host"):
                continue
            found += 1
            assert place.port in LISTENS[place.hostname], f"{service.name}: {address}"
    assert found > 40


def test_the_airflow_image_satisfies_the_package():
    from packaging.requirements import Requirement

    [dockerfile] = {service.spec["build"]["dockerfile_inline"] for service in AIRFLOW}
    [version] = re.findall(r"FROM apache/airflow:([\d.]+)-python", dockerfile)
    pyproject = (CHECKOUT / "pyproject.toml").read_text()
    [wanted] = re.findall(r'"(apache-airflow>=[^"]+)"', pyproject)
    [extras] = re.findall(r"/opt/airflow/deltaforge\[([\w,]+)\]", dockerfile)

    assert Requirement(wanted).specifier.contains(version)
    assert f"'apache-airflow[celery]=={version}'" in dockerfile
    [celery] = re.findall(r'"(celery<[\d.]+)"', pyproject)
    assert f"'{celery}'" in dockerfile
    for extra in extras.split(","):
        assert f"\n{extra} = [" in pyproject, extra
    # What a document of a DAG asks of its worker's preflight.
    kinds = {kind for document in documents() for kind in kinds_of(document)}
    assert kinds <= set(extras.split(","))


def test_the_spark_image_is_the_one_that_the_command_writes(tmp_path):
    [dockerfile] = {service.spec["build"]["dockerfile_inline"] for service in OURS}
    [base] = set(re.findall(r"FROM (\S+) AS", dockerfile))
    assert CliRunner().invoke(app, ["image", str(tmp_path), "--base", base]).exit_code == 0
    written = steps_of((tmp_path / "Dockerfile").read_text())
    steps = steps_of(dockerfile)

    assert ("COPY", ". /src") in steps
    steps.remove(("COPY", ". /src"))
    installed = [re.sub(r'"/src(\[[\w,]+\])"', r'"P\1"', rest) for _, rest in steps]
    released = [
        re.sub(r'"airflow-provider-deltaforge(\[[\w,]+\])==[^"]+"', r'"P\1"', rest)
        for _, rest in written
    ]
    assert [word for word, _ in steps] == [word for word, _ in written]
    assert list(map(words_of, installed)) == list(map(words_of, released))


def test_airflow_knows_its_commands(monkeypatch):
    monkeypatch.setenv(_EXECUTOR, "CeleryExecutor")
    from airflow.cli.cli_parser import get_parser
    from airflow.providers.celery.executors.celery_executor import CeleryExecutor

    assert CeleryExecutor.__name__ == SERVICES["airflow-worker"].environment[_EXECUTOR]

    parser = get_parser()
    for service in AIRFLOW:
        words = service.command
        if words[:2] == ["bash", "-c"]:
            words = words[2].partition(" && ")[0].removeprefix("airflow ").split()
        assert callable(parser.parse_args(words).func), service.name
        if service.health is not None and "airflow jobs" in service.health[-1]:
            check = service.health[-1].removeprefix("airflow ").replace('"', "").split()
            assert callable(parser.parse_args(check).func)


def test_airflow_has_every_setting():
    from airflow.configuration import retrieve_configuration_description

    known = retrieve_configuration_description()
    [environment] = {tuple(service.environment.items()) for service in AIRFLOW}
    settings = [name for name, _ in environment if name.startswith("AIRFLOW__")]
    assert len(settings) >= 15
    for name in settings:
        _, section, option = name.split("__")
        assert option.lower() in known[section.lower()]["options"], name
    values = dict(environment)
    assert len(values["AIRFLOW__API_AUTH__JWT_SECRET"]) >= 64
    from cryptography.fernet import Fernet

    Fernet(values["AIRFLOW__CORE__FERNET_KEY"])


def test_every_variable_of_ours_is_read_and_every_document_finds_its_own():
    [environment] = {tuple(service.environment.items()) for service in AIRFLOW}
    names = {name for name, _ in environment}
    mounted = [mount.file for mount in AIRFLOW[0].mounts if mount.file is not None]
    text = "".join(file.read_text() for file in mounted)
    for name in (name for name in names if name.startswith("DELTAFORGE_")):
        assert f'"{name}"' in text, name
    wanted = {name for document in documents() for name in variables_of(document)}
    assert wanted == {"MYSQL_DSN", "KAFKA_BROKERS", "POSTGRES_DSN", "REDIS_URL", "NATS_URL"}
    known = ("AIRFLOW__", "AIRFLOW_CONN_", "DELTAFORGE_")
    assert {name for name in names if not name.startswith(known)} == wanted


def test_documents_are_right_and_their_tables_are_made_and_filled():
    made = COMPOSE.config("mysql-shop") + COMPOSE.config("postgres-databases")
    for document in documents():
        load(document, SERVICES["airflow-worker"].environment).refuse_unbuilt()
    for table in ("orders", "customers"):
        assert re.search(rf"CREATE TABLE {table} \(", made), table
        assert re.search(rf"INSERT INTO {table} \(", made), table
    assert "updated_at TIMESTAMP" in made  # What orders_resnapshot asks for.
    assert "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT" in made
    [publication] = {
        p for document in documents() for p in re.findall(r"name: (\w+), cr", document)
    }
    assert f"CREATE PUBLICATION {publication} FOR TABLE customers" in made
    connection = connection_of(COMPOSE)
    assert f"CREATE DATABASE {connection['schema']};" in made


def test_the_dags_are_these_and_run_on_the_cluster(tmp_path, monkeypatch):
    for service in AIRFLOW:
        for name, value in service.environment.items():
            if not name.startswith("AIRFLOW__"):
                monkeypatch.setenv(name, value)
    placed = {mount.target: mount.file.read_text() for mount in AIRFLOW[0].mounts if mount.file}
    placed |= {path: COMPOSE.config(name) for path, name in AIRFLOW[0].configs.items()}
    for path, text in placed.items():
        file = tmp_path / Path(path).relative_to("/opt/airflow/dags")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    from airflow.sdk import DAG

    found = [runpy.run_path(str(file)).values() for file in sorted(tmp_path.glob("*.py"))]
    dags = {each.dag_id: each for values in found for each in values if isinstance(each, DAG)}

    assert set(dags) == {"orders_pipeline", "orders_arrived", "orders_resnapshot", "customers"}
    store = connection_of(COMPOSE)
    for task in (task for dag in dags.values() for task in dag.tasks if hasattr(task, "document")):
        # Refused before a DAG runs, or found on the cluster's hosts.
        assert task.pipeline_task().backend().chosen == "standalone", task.task_id
        task.pipeline_task().backend().check(
            "spark://spark-master:7077", f"postgresql://{store['host']}/deltaforge"
        )
        assert task.master == "spark://spark-master:7077", (task.dag_id, task.task_id)


def test_the_connection_is_one_the_hook_can_read(monkeypatch):
    [value] = {service.environment["AIRFLOW_CONN_DELTAFORGE_DEFAULT"] for service in AIRFLOW}
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", value)
    hook = DeltaForgeHook()
    backend = hook.backend().standalone

    assert SERVICES["deltaforge"].environment[ENVIRONMENT] == hook.store_dsn()
    [url] = backend.rest_urls
    assert urlsplit(url).port in LISTENS[str(urlsplit(url).hostname)]
    [dockerfile] = {service.spec["build"]["dockerfile_inline"] for service in OURS}
    assert f"PYSPARK_PYTHON={backend.python} " in dockerfile


def test_spark_has_every_class_variable_and_setting():
    [core] = (spark_home() / "jars").glob("spark-core_*.jar")
    [launcher] = (spark_home() / "jars").glob("spark-launcher_*.jar")
    [dockerfile] = {service.spec["build"]["dockerfile_inline"] for service in OURS}
    text = dockerfile + "".join(" ".join(service.command) for service in OURS)
    classes = set(re.findall(r"org\.apache\.spark[\w.]+", text))
    parts = [SERVICES["spark-master"].environment, SERVICES["spark-worker"].environment]
    variables = {name for part in parts for name in part}
    settings = set(re.findall(r"-D(spark[\w.]+)", str(parts)))
    with ZipFile(core) as spark, ZipFile(launcher) as launching:
        names = set(spark.namelist())
        reads = [
            spark.read("org/apache/spark/deploy/worker/WorkerArguments.class"),
            launching.read("org/apache/spark/launcher/SparkClassCommandBuilder.class"),
        ]
        config = "org/apache/spark/internal/config"
        known = [spark.read(f"{config}/package$.class"), spark.read(f"{config}/Worker$.class")]

    assert {f"{name.replace('.', '/')}.class" for name in classes} <= names
    assert len(classes) == 2
    assert "${SPARK_MASTER:?" in dockerfile
    for name in variables - {"SPARK_MASTER"}:
        assert any(name.encode() in part for part in reads), name
    assert settings == {"spark.master.rest.enabled", "spark.worker.cleanup.enabled"}
    for name in settings:
        assert any(name.encode() in part for part in known), name


def test_our_own_commands_exist():
    command = get_command(app)
    lines = [" ".join(service.command) for service in OURS]
    ours = [words for line in lines for words in re.findall(r"\bdeltaforge,? ([a-z][^;>]*)", line)]
    assert [line.split()[0] for line in ours] == ["serve", "token", "token"]
    for line in ours:
        with command.make_context("deltaforge", line.split(), resilient_parsing=True) as context:
            name, chosen, rest = command.resolve_command(context, line.split())
            if name == "token":
                with chosen.make_context(name, rest, parent=context, resilient_parsing=True) as sub:
                    _, chosen, rest = chosen.resolve_command(sub, rest)
            parsed = chosen.make_context(name, rest, parent=context, resilient_parsing=True)
            assert not parsed.args, line
    variables = {n for s in OURS for n in s.environment if n.startswith("DELTAFORGE_")}
    assert variables == {ENVIRONMENT, "DELTAFORGE_API_ADDR"}


@pytest.mark.parametrize("service", OURS, ids=lambda service: service.name)
def test_programs_in_commands_are_python(service):
    for words in (service.command, service.health or []):
        if words[:2] == ["python", "-c"]:
            compile(words[2], service.name, "exec")
    for config in service.configs.values():
        compile(COMPOSE.config(config), config, "exec")


def test_prometheus_takes_its_configuration_and_finds_the_token(tmp_path):
    prometheus, token = SERVICES["prometheus"], tmp_path / "token"
    placed = {mount.target: mount.file for mount in prometheus.mounts if mount.file is not None}
    [config] = [w.partition("=")[2] for w in prometheus.command if w.startswith("--config.file=")]
    text = placed[config].read_text()
    [credentials] = re.findall(r"credentials_file: (\S+)", text)
    [volume] = [m for m in prometheus.mounts if credentials.startswith(f"{m.target}/")]
    assert volume in prometheus.mounts
    written = SERVICES["metrics-token"]
    assert volume.source in {mount.source for mount in written.mounts}
    assert f"> {credentials};" in written.command[-1]

    token.write_text("t")
    for path, file in placed.items():
        shutil.copy(file, tmp_path / Path(path).name)
    changed = text.replace(credentials, str(token))
    (tmp_path / Path(config).name).write_text(changed)
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: apt-get install prometheus"
    done = subprocess.run(
        [promtool, "check", "config", str(tmp_path / Path(config).name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout
    [target] = yaml.safe_load(text)["scrape_configs"][0]["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert int(port) in LISTENS[name]
    assert SERVICES["deltaforge"].environment["DELTAFORGE_API_ADDR"].endswith(f":{port}")


def test_grafana_is_provisioned_with_files_that_are_there():
    grafana = SERVICES["grafana"]
    placed = {mount.target: mount.file for mount in grafana.mounts if mount.file is not None}
    provisioned = {
        path.split("/")[-2]: yaml.safe_load(file.read_text())
        for path, file in placed.items()
        if path.startswith("/etc/grafana/provisioning/")
    }
    assert set(provisioned) == {"datasources", "dashboards"}
    [source] = provisioned["datasources"]["datasources"]
    [provider] = provisioned["dashboards"]["providers"]
    place = urlsplit(source["url"])
    assert place.port in LISTENS[str(place.hostname)]
    boards = [path for path in placed if path.startswith(f"{provider['options']['path']}/")]
    assert boards == [grafana.environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]]
    board = json.loads(placed[boards[0]].read_text())
    [variable] = [v for v in board["templating"]["list"] if v["type"] == "datasource"]
    assert variable["query"] == source["type"]


def test_what_builds_the_images_is_sent_to_the_builder():
    ignored = (CHECKOUT / ".dockerignore").read_text().splitlines()
    wheel = (CHECKOUT / "pyproject.toml").read_text()
    included = set(re.findall(r'^"(\w+)" = "airflow_provider', wheel, re.MULTILINE))
    needed = {"pyproject.toml", "hatch_build.py", "README.md", "airflow_provider_deltaforge"}
    assert {f"!{name}" for name in needed | included} <= set(ignored)
    assert "*" in ignored
    for service in (*AIRFLOW, *OURS):
        assert service.spec["build"]["context"] == "."


def documents() -> list[str]:
    files = [mount.file for mount in AIRFLOW[0].mounts if mount.target.endswith(".yaml")]
    return [file.read_text() for file in files if file] + [
        COMPOSE.config(name) for name in AIRFLOW[0].configs.values()
    ]


def variables_of(document: str) -> set[str]:
    return set(re.findall(r"\$\{([A-Z][A-Z0-9_]+)(?::-[^}]*)?\}", document))


def kinds_of(document: str) -> set[str]:
    spec = yaml.safe_load(document)["spec"]
    return {spec["source"]["type"], *(sink["type"] for sink in spec["sinks"])}


def connection_of(compose: Compose) -> dict[str, object]:
    environment = compose.services["airflow-worker"].environment
    return dict(json.loads(environment["AIRFLOW_CONN_DELTAFORGE_DEFAULT"]))
