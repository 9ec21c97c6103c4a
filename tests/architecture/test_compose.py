"""``docker-compose.airflow.yml`` agrees with the package; no container engine runs it here."""

import json
import re
from pathlib import Path

import pytest
import yaml

from airflow_provider_deltaforge import plugins
from airflow_provider_deltaforge.provider_info import get_provider_info
from tests.architecture.probe import CHECKOUT
from tests.servers.__main__ import SERVERS

_COMPOSE = yaml.safe_load((CHECKOUT / "docker-compose.airflow.yml").read_text())
_SERVICES = _COMPOSE["services"]
_ENVIRONMENT = _SERVICES["airflow"]["environment"]


def test_the_services_are_the_ones_the_example_needs():
    assert set(_SERVICES) == {"mysql", "kafka", "postgres", "airflow"}
    assert _SERVICES["mysql"]["image"].startswith("mysql:9")
    assert set(_SERVICES["airflow"]["depends_on"]) == set(_SERVICES) - {"airflow"}
    for name in _SERVICES["airflow"]["depends_on"]:
        assert "healthcheck" in _SERVICES[name], name


def test_the_airflow_image_satisfies_the_package():
    from packaging.requirements import Requirement

    dockerfile = _SERVICES["airflow"]["build"]["dockerfile_inline"]
    [version] = re.findall(r"FROM apache/airflow:([\d.]+)-python", dockerfile)
    pyproject = (CHECKOUT / "pyproject.toml").read_text()
    [wanted] = re.findall(r'"(apache-airflow>=[^"]+)"', pyproject)
    [extras] = re.findall(r"/opt/deltaforge\[([\w,]+)\]", dockerfile)

    assert Requirement(wanted).specifier.contains(version)
    assert f"apache-airflow[postgres]=={version}" in dockerfile
    for extra in extras.split(","):
        assert f"\n{extra} = [" in pyproject, extra


def test_the_mounted_folders_exist_and_the_volumes_are_declared():
    for service in _SERVICES.values():
        for volume in service.get("volumes", ()):
            place = volume.split(":")[0]
            known = (CHECKOUT / place).is_dir() if place.startswith(".") else _declared(place)
            assert known, volume


@pytest.mark.parametrize(
    "document", ["dags/pipelines/orders.yaml"], ids=lambda document: Path(document).stem
)
def test_the_document_finds_its_variables(document):
    text = (CHECKOUT / document).read_text()
    wanted = set(re.findall(r"\$\{([A-Z][A-Z0-9_]+)(?::-[^}]*)?\}", text))

    assert wanted
    assert wanted <= set(_ENVIRONMENT)


def test_the_connection_is_one_the_hook_can_read():
    connection = json.loads(_ENVIRONMENT["AIRFLOW_CONN_DELTAFORGE_DEFAULT"])
    kinds = {kind["connection-type"] for kind in get_provider_info()["connection-types"]}
    created = _COMPOSE["configs"]["state-store"]["content"]

    assert connection["conn_type"] in kinds
    assert connection["host"] in _SERVICES
    assert f"CREATE DATABASE {connection['schema']} " in created
    assert "postgres" in plugins.STORES.names()


def test_the_published_ports_are_those_of_dev_sh_and_on_loopback():
    published = {
        name: service["ports"][0].split(":")
        for name, service in _SERVICES.items()
        if "ports" in service
    }

    assert {address for address, _, _ in published.values()} == {"127.0.0.1"}
    for name in ("mysql", "postgres", "kafka"):
        assert int(published[name][1]) == SERVERS[name].port


def test_the_replication_user_is_the_one_of_the_document():
    created = _COMPOSE["configs"]["mysql-users"]["content"]

    assert "CREATE USER 'df'@'%' IDENTIFIED BY 'df-secret'" in created
    assert "mysql://df:df-secret@mysql:3306" in _ENVIRONMENT["MYSQL_DSN"]
    assert "REPLICATION SLAVE, REPLICATION CLIENT" in created


def _declared(name: str) -> bool:
    return name in _COMPOSE["volumes"]
