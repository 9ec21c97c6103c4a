"""``deltaforge image``: write what an image of drivers and their executors is built of."""

import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import metadata
from pathlib import Path
from typing import Annotated

import typer

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.cli.options import out
from airflow_provider_deltaforge.errors import SpecError

_PACKAGE = "airflow-provider-deltaforge"
_EXTRAS = (
    "spark,mysql,postgres,kafka,redis,nats,http,turso,javascript,sql,contract,avro,sensing,api"
)
_PYTHON = "/opt/deltaforge/bin/python"

_DOCKERFILE = """\
# syntax=docker/dockerfile:1
# {what}: Spark, the package and its
# compiled kernels. No document and no secret is in it. Written by `deltaforge image` {version}.
#
#   docker build -t deltaforge-spark:{version} .
{usage}
FROM {base} AS build
RUN python -m venv /opt/deltaforge
{install}
# For any processor of this architecture, not for the one that builds the image.
ENV NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=/opt/kernels
RUN apt-get update \\
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev \\
    && /opt/deltaforge/bin/deltaforge precompile
RUN ln -s "$({python} -c 'import pyspark; print(*pyspark.__path__)')" /opt/deltaforge/spark

FROM {base} AS runtime
# Java for Spark, ps for its scripts, and tini, which ends what a driver leaves behind.
RUN apt-get update \\
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini \\
    && rm -rf /var/lib/apt/lists/* \\
    && useradd --system --uid 10001 --create-home --home-dir /app deltaforge \\
    && install -d -o deltaforge -g deltaforge /app/work
COPY --from=build /opt/deltaforge /opt/deltaforge
COPY --from=build --chown=10001:10001 /opt/kernels /opt/kernels
ENV PATH=/opt/deltaforge/bin:$PATH \\
    PYTHONUNBUFFERED=1 \\
    NUMBA_CPU_NAME=generic \\
    NUMBA_CACHE_DIR=/opt/kernels \\
    PYSPARK_PYTHON={python} \\
    SPARK_HOME=/opt/deltaforge/spark \\
    SPARK_WORKER_DIR=/app/work
{start}
"""

_STANDALONE = {
    "what": "Hosts of a Spark standalone cluster that run DeltaForge's drivers",
    "usage": """\
#   docker run -e SPARK_MASTER=spark://spark-master:7077 deltaforge-spark:{version}
#
# In Airflow's connection: "launch_backend": "standalone", "spark_python": "{python}".""",
    "start": """\
USER 10001
WORKDIR /app
ENTRYPOINT ["tini", "--"]
CMD ["sh", "-c", "exec $SPARK_HOME/bin/spark-class org.apache.spark.deploy.worker.Worker ${SPARK_MASTER:?set it to spark://host:7077}"]""",  # noqa: E501 - a Dockerfile's line
}
_KUBERNETES = {
    "what": "Pods of DeltaForge's drivers and their executors",
    "usage": """\
#   docker push deltaforge-spark:{version}      (to a registry that the cluster's nodes reach)
#
# In Airflow's connection: "launch_backend": "kubernetes", "kubernetes_image": its name there.""",
    "start": """\
COPY --chmod=755 entrypoint.sh /opt/deltaforge/entrypoint.sh
USER 10001
WORKDIR /app
ENTRYPOINT ["/opt/deltaforge/entrypoint.sh"]""",
}
_HOSTS = {"standalone": _STANDALONE, "kubernetes": _KUBERNETES}

_ENTRYPOINT = """\
#!/bin/sh
# What Spark on Kubernetes starts in this image: its pods name a role, and say the rest in SPARK_…
# variables. tini ends what a driver or an executor leaves behind.
set -eu

role=${1:-}
if [ "$role" = driver ]; then
    shift
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" \\
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \\
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \\
        --deploy-mode client "$@"
fi
if [ "$role" = executor ]; then
    # One option of the JVM each, and it may hold blanks.
    set --
    number=0
    while eval "option=\\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
        set -- "$@" "$option"
        number=$((number + 1))
    done
    java=java
    [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
    exec tini -s -- "$java" "$@" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \\
        -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*" \\
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \\
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \\
        --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \\
        --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \\
        --podName "$SPARK_EXECUTOR_POD_NAME"
fi
exec tini -s -- "$@"
"""

_IGNORED = """\
# What the image is made of, and nothing else: no state, no environment, no document.
*
!Dockerfile
{more}"""


def image(
    directory: Annotated[
        Path, typer.Argument(file_okay=False, help="Where to write; made where it is missing.")
    ] = Path("image"),
    wheel: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Install this wheel of the package, which is copied there; else the released "
            "version of this command.",
        ),
    ] = None,
    extras: Annotated[
        str, typer.Option(help="Of the package, separated by commas; spark has to be there.")
    ] = _EXTRAS,
    base: Annotated[
        str | None,
        typer.Option(help="A Debian 12 image with Python. Default: of this command's version."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="standalone: a worker of a Spark cluster. kubernetes: pods of drivers."),
    ] = "standalone",
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
) -> None:
    """Write a Dockerfile and .dockerignore for hosts of a Spark cluster that run drivers.

    The image has Spark, this package and its compiled kernels. For Airflow's launch backend
    `standalone` it is a worker of the cluster, for `kubernetes` what drivers and executors run in.
    See docs/airflow.md.
    """
    wanted = _known(extras)
    if wheel is not None and not wheel.name.startswith("airflow_provider_deltaforge-"):
        raise SpecError(f"--wheel: {wheel.name} is no wheel of {_PACKAGE}")
    text = _DOCKERFILE.format(
        version=__version__,
        **_words(host),
        base=base or f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim-bookworm",
        install=_install(wheel, wanted),
        python=_PYTHON,
    )
    entry = {"entrypoint.sh": _ENTRYPOINT} if host == "kubernetes" else {}
    copied = [wheel.name] if wheel is not None else []
    ignored = _IGNORED.format(more="".join(f"!{name}\n" for name in (*copied, *entry)))
    files = {"Dockerfile": text, ".dockerignore": ignored, **entry}
    there = [name for name in files if (directory / name).exists()]
    if there and not force:
        raise SpecError(f"{directory / there[0]} is there already; overwrite it with --force")
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_text(content)
        if name in entry:
            (directory / name).chmod(0o755)
    if wheel is not None and wheel.resolve().parent != directory.resolve():
        shutil.copy(wheel, directory / wheel.name)
    out.print(f"docker build -t deltaforge-spark:{__version__} {directory}", highlight=False)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(image)


def _known(extras: str) -> str:
    """Return the extras, spelled as pip takes them.

    Raises:
        SpecError: the package has no such extra, or Spark is missing.
    """
    wanted = [extra.strip() for extra in extras.split(",") if extra.strip()]
    known = metadata(_PACKAGE).get_all("Provides-Extra") or []
    for extra in wanted:
        if extra not in known:
            raise SpecError(f"--extras: there is no {extra!r} (known: {', '.join(sorted(known))})")
    if "spark" not in wanted:
        raise SpecError("--extras: add spark: what the image runs is a Spark worker")
    return ",".join(wanted)


def _words(host: str) -> Mapping[str, str]:
    """Return what a Dockerfile says of those who run it.

    Raises:
        SpecError: there is no such host.
    """
    if host not in _HOSTS:
        raise SpecError(f"--host: write {' or '.join(_HOSTS)}; got {host!r}")
    return {
        key: text.replace("{version}", __version__).replace("{python}", _PYTHON)
        for key, text in _HOSTS[host].items()
    }


def _install(wheel: Path | None, extras: str) -> str:
    pip = "RUN /opt/deltaforge/bin/pip install --no-cache-dir"
    if wheel is None:
        return f'{pip} "{_PACKAGE}[{extras}]=={__version__}"'
    return f'COPY {wheel.name} /tmp/\n{pip} "/tmp/{wheel.name}[{extras}]"'
