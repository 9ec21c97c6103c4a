"""Which launch backend a connection chooses, and whose settings its extra holds."""

import json

import pytest

from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.engine.spark.session import SETTINGS
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.provider_info import get_provider_info

STORE = "postgresql://db/deltaforge"
MASTER = "k8s://https://kubernetes.default.svc"


@pytest.fixture
def backends(monkeypatch):
    """Return the backends of a connection with an extra."""

    def of(**extra):
        value = {"conn_type": "deltaforge", "host": "db", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", json.dumps(value))
        return DeltaForgeHook().backend()

    return of


def test_settings_of_spark_are_those_of_the_backend_that_starts_drivers(backends):
    own_secret = {"spark.kubernetes.driver.secretKeyRef.MYSQL_DSN": "shop:dsn"}
    chosen = backends(
        launch_backend="kubernetes", kubernetes_image="registry/df:1", spark_conf=own_secret
    )
    chosen.check(MASTER, STORE)
    assert chosen.kubernetes.settings.conf == own_secret
    assert chosen.standalone.conf == {}
    with pytest.raises(SpecError, match="spark_conf"):  # The standalone cluster's are refused.
        backends(launch_backend="standalone", spark_conf=own_secret)


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_settings_that_the_drivers_session_makes_itself_are_refused(backends, key):
    with pytest.raises(SpecError, match="is set by the launch backend"):
        backends(launch_backend="standalone", spark_conf={key: "1"})


def test_settings_of_spark_are_refused_where_no_driver_takes_them(backends):
    with pytest.raises(SpecError, match="launch_backend local take none"):
        backends(spark_conf={"spark.driver.memory": "2g"})


def test_one_way_to_the_cluster_is_named(backends):
    assert backends(kubernetes_context="shop").kubernetes.access.context == "shop"
    by_connection = backends(kubernetes_conn_id="shop").kubernetes.access
    assert (by_connection.context, by_connection.source) == (None, "connection shop")
    with pytest.raises(SpecError, match=r"kubernetes_context: .*keep one"):
        backends(kubernetes_conn_id="shop", kubernetes_context="shop")


def test_a_connection_that_does_not_work_here_says_nothing_about_drivers(backends, monkeypatch):
    shop = {"conn_type": "kubernetes", "extra": {"kube_config_path": "/nowhere/config"}}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(shop))
    found = backends(kubernetes_conn_id="shop").kubernetes.status({"cluster": {}})
    assert found.state is JobState.UNKNOWN
    assert "kubernetes_conn_id: connection 'shop' does not work here" in found.detail


def test_a_wrong_extra_is_refused_whichever_backend_is_chosen(backends):
    with pytest.raises(SpecError, match="kubernetes_launcher"):
        backends(kubernetes_launcher="helm")


def test_the_form_has_every_extra_of_pods():
    [form] = get_provider_info()["connection-types"]
    fields = set(form["conn-fields"])
    wanted = {"image", "namespace", "service_account", "launcher", "driver_template"}
    wanted |= {"executor_template", "conn_id", "context"}
    assert {f"kubernetes_{name}" for name in wanted} <= fields


def test_the_extras_of_yarn_reach_its_backend_and_are_in_the_form(backends):
    extra = {
        "yarn_rest_url": "http://rm1:8088,http://rm2:8088",
        "yarn_user": "flow",
        "spark_archive": "hdfs:///df.zip",
        "hadoop_conf_dir": "/etc/hadoop",
    }
    conf = {"spark.yarn.queue": "cdc"}
    chosen = backends(launch_backend="yarn", spark_conf=conf, **extra)

    assert chosen.chosen == "yarn"
    assert chosen.yarn.rest_urls == ("http://rm1:8088", "http://rm2:8088")
    found = (chosen.yarn.user, chosen.yarn.archive, chosen.yarn.conf_dir, chosen.yarn.conf)
    assert found == ("flow", "hdfs:///df.zip", "/etc/hadoop", conf)
    assert chosen.standalone.conf == {}
    [form] = get_provider_info()["connection-types"]
    assert set(extra) <= set(form["conn-fields"])
