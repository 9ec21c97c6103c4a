from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk import BaseSensorOperator

from airflow_provider_deltaforge.links.pipeline import (
    DeltaForgePipelineLink,
    DeltaForgePipelinesLink,
)
from airflow_provider_deltaforge.operators.control import DeltaForgeControlOperator
from airflow_provider_deltaforge.operators.deferral import DeferringOperator
from airflow_provider_deltaforge.operators.fleet import DeltaForgeFleetOperator
from airflow_provider_deltaforge.operators.pipeline import PipelineOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from airflow_provider_deltaforge.sensors.deltaforge import DeltaForgeSnapshotSensor, PipelineSensor


def link_of(operator):
    (link,) = operator.operator_extra_links
    return link.get_link(operator, ti_key=None)


def test_the_link_leads_to_the_page_of_this_provider(document):
    from airflow_provider_deltaforge.plugins_airflow.page import DeltaForgePlugin

    link = urlsplit(link_of(DeltaForgeStreamOperator(task_id="t", document=document)))
    routes = {f"/plugin/{app['url_route']}" for app in DeltaForgePlugin.react_apps}

    assert link.path in routes
    assert parse_qs(link.query) == {"pipeline": ["orders"], "conn_id": ["deltaforge_default"]}
    assert not link.netloc


def test_the_link_keeps_the_path_under_which_airflow_is_served(monkeypatch):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host:8443/airflow/")
    sensor = DeltaForgeSnapshotSensor(task_id="t", pipeline="a b")

    assert link_of(sensor) == "/airflow/plugin/deltaforge?pipeline=a+b&conn_id=deltaforge_default"


def test_a_task_that_names_no_pipeline_has_no_link():
    assert link_of(DeltaForgeStreamOperator(task_id="t", document="/no/such.yaml")) == ""
    assert link_of(DeltaForgeControlOperator(task_id="t", action="stop")) == ""


def test_the_link_of_a_fleet_leads_to_all_pipelines_of_its_store():
    fleet = DeltaForgeFleetOperator(task_id="t", documents="/srv/x", deltaforge_conn_id="shop")

    assert link_of(fleet).endswith("/plugin/deltaforge?conn_id=shop")
    assert DeltaForgeFleetOperator.operator_extra_links == (DeltaForgePipelinesLink(),)


@pytest.mark.parametrize("base", [PipelineOperator, DeltaForgeControlOperator, PipelineSensor])
def test_every_task_of_this_provider_has_the_link(base):
    assert issubclass(base, DeferringOperator | BaseSensorOperator)
    assert [type(link) for link in base.operator_extra_links] == [DeltaForgePipelineLink]
