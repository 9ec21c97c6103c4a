# syntax=docker/dockerfile:1
# DeltaForge without Airflow and Spark: `deltaforge serve`, one process per pipeline. docs/deployment.md
#
#   docker build -t deltaforge:local .
#   docker run --rm -p 127.0.0.1:8080:8080 -p 127.0.0.1:9000:9000 \
#       -v ./pipelines:/etc/deltaforge:ro -v deltaforge-state:/app/data \
#       deltaforge:local --config /etc/deltaforge
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/deltaforge
# Its dependencies change seldom: a layer of their own.
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY airflow_provider_deltaforge/__init__.py airflow_provider_deltaforge/__init__.py
COPY spark_jobs spark_jobs
COPY dags dags
ARG EXTRAS=mysql,postgres,kafka,redis,nats,http,turso,javascript,sql,contract,avro,sensing,api
RUN /opt/deltaforge/bin/pip install --no-cache-dir ".[${EXTRAS}]"
COPY airflow_provider_deltaforge airflow_provider_deltaforge
RUN /opt/deltaforge/bin/pip install --no-cache-dir --no-deps --force-reinstall ".[${EXTRAS}]"
# For any processor of this architecture, not for the one that builds the image.
ENV NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=/opt/kernels
WORKDIR /
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev \
    && /opt/deltaforge/bin/deltaforge precompile

FROM python:${PYTHON}-slim-bookworm AS runtime
# tini ends what a driver leaves behind: the first process of a container has to.
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /app deltaforge \
    && install -d -o deltaforge -g deltaforge -m 0700 /app/data \
    && install -d /etc/deltaforge
COPY --from=build /opt/deltaforge /opt/deltaforge
COPY --from=build --chown=10001:10001 /opt/kernels /opt/kernels
ENV PATH=/opt/deltaforge/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CPU_NAME=generic \
    NUMBA_CACHE_DIR=/opt/kernels \
    DELTAFORGE_LOCAL=true \
    DELTAFORGE_STORE=sqlite:////app/data/deltaforge.db \
    DELTAFORGE_API_ADDR=0.0.0.0:8080 \
    DELTAFORGE_METRICS_ADDR=0.0.0.0:9000
USER 10001
WORKDIR /app
VOLUME ["/app/data"]
EXPOSE 8080 9000
# Drivers deliver what is in flight: give them time, `docker stop --time 40`.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as web; web.urlopen('http://127.0.0.1:' + os.environ['DELTAFORGE_API_ADDR'].rpartition(':')[2] + '/healthz', timeout=4)"]
ENTRYPOINT ["tini", "--", "deltaforge"]
CMD ["serve"]
