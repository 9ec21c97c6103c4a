"""What ``pip install`` brings, and that the two PySpark distributions are one release."""

import configparser
import email
import re
import runpy
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

from tests.architecture.probe import CHECKOUT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from this checkout by the back end that is installed."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(command, check=False, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [path] = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_module_and_the_spark_jobs(wheel):
    held = set(wheel.namelist())
    modules = {
        str(path.relative_to(CHECKOUT))
        for path in (CHECKOUT / "airflow_provider_deltaforge").rglob("*.py")
    }
    jobs = {path.name for path in (CHECKOUT / "spark_jobs").glob("*.py")}

    assert modules - held == set()
    assert jobs >= {"snapshot_job.py", "stream_job.py"}
    assert {
        f"airflow_provider_deltaforge/engine/spark/jobs/{name}" for name in jobs
    } - held == set()


def test_the_wheel_holds_the_example_dags_and_their_documents(wheel):
    examples = {
        f"airflow_provider_deltaforge/example_dags/{path.relative_to(CHECKOUT / 'dags')}"
        for suffix in ("py", "yaml")
        for path in (CHECKOUT / "dags").rglob(f"*.{suffix}")
    }

    held = {name for name in wheel.namelist() if "/example_dags/" in name}
    assert held == examples
    assert "airflow_provider_deltaforge/example_dags/pipelines/orders.yaml" in held


def test_the_wheel_holds_every_file_of_the_page(wheel):
    folder = CHECKOUT / "airflow_provider_deltaforge" / "page"
    files = {str(path.relative_to(CHECKOUT)) for path in folder.rglob("*.*")}

    assert "airflow_provider_deltaforge/page/vendor/react.production.min.js" in files
    assert files - set(wheel.namelist()) == set()


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}

    assert {re.sub(r"-\d.*", "", top) for top in tops} == {
        "airflow_provider_deltaforge",
    }


def test_the_wheel_says_that_it_is_typed(wheel):
    assert "airflow_provider_deltaforge/py.typed" in wheel.namelist()


def metadata_of(wheel):
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_string(wheel.read(name).decode())


def links_in(text):
    return re.findall(r"\]\(([^)]+)\)", text)


def test_the_page_of_the_index_has_no_link_that_leads_nowhere_there(wheel):
    page = metadata_of(wheel).get_payload()

    assert "change data capture" in page.lower()
    assert [link for link in links_in(page) if not link.startswith(("https://", "#"))] == []


def test_a_release_links_to_its_own_files_in_the_repository(monkeypatch):
    base = "https://forge.example.com/team/deltaforge"
    monkeypatch.setenv("DELTAFORGE_PROJECT_URL", f"{base}/")
    found = {}
    runpy.run_path(str(CHECKOUT / "hatch_build.py"))["IndexPage"](str(CHECKOUT), {}).update(found)
    page, tag = found["readme"]["text"], f"v{version('airflow-provider-deltaforge')}"
    ours = [link for link in links_in(page) if link.startswith(base)]
    paths = [re.sub(rf"^{base}/(blob|raw)/{tag}/|#.*", "", link) for link in ours]

    assert len(ours) > 20
    assert [path for path in paths if not (CHECKOUT / path).exists()] == []
    assert f"![The DeltaForge page in Airflow]({base}/raw/{tag}/docs/images/page.png)" in page
    assert found["urls"]["Changelog"] == f"{base}/blob/{tag}/CHANGELOG.md"
    assert {*found["urls"]} == {"Homepage", "Source", "Documentation", "Changelog", "Issues"}


def test_the_wheel_names_its_entry_points(wheel):
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    points = configparser.ConfigParser(delimiters=("=",))
    points.read_string(wheel.read(name).decode())

    assert points["console_scripts"]["deltaforge"] == "airflow_provider_deltaforge.cli.app:main"
    assert points["apache_airflow_provider"]["provider_info"].endswith(":get_provider_info")


def test_every_entry_point_leads_somewhere():
    for point in distribution("airflow-provider-deltaforge").entry_points:
        assert callable(point.load()), point


def test_pyspark_and_its_client_are_pinned_to_one_release():
    text = (CHECKOUT / "pyproject.toml").read_text()
    pins = re.findall(r'"(pyspark(?:-client)?)==([\d.]+)"', text)

    assert {name for name, _ in pins} == {"pyspark", "pyspark-client"}
    assert len({version for _, version in pins}) == 1


def test_the_installed_pyspark_is_one_release():
    """Both distributions own the same files; two releases would be mixed on disk."""
    whole, client = distribution("pyspark"), distribution("pyspark-client")
    hashes = {file: file.hash for file in whole.files or () if file.hash}
    mixed = [
        str(file)
        for file in client.files or ()
        if file.hash and file in hashes and hashes[file].value != file.hash.value
    ]

    assert whole.version == client.version
    assert mixed == []


def test_the_jars_are_of_the_same_release_as_the_python_files():
    version = distribution("pyspark").version
    place = Path(str(distribution("pyspark").locate_file("pyspark")))
    said = re.search(r"['\"]([\d.]+)['\"]", (place / "version.py").read_text())
    [jar] = (place / "jars").glob("spark-core_*.jar")

    assert said is not None
    assert said.group(1) == version
    assert jar.stem.rpartition("-")[2] == version
