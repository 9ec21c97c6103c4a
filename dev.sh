#!/usr/bin/env bash
# Everything a developer does, from a fresh clone: ./dev.sh help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

VENV=.venv
PY=$VENV/bin/python
SETUP_LOG=.deltaforge/setup.log
SITE=.deltaforge/site
IMAGE=${DELTAFORGE_IMAGE:-deltaforge:local}
POLICY=/usr/sbin/policy-rc.d

# The tests start hundreds of Pythons. Where no bytecode may be written, as in many container images,
# each of them compiles its imports anew: seconds of CPU for every driver and part of Airflow.
unset PYTHONDONTWRITEBYTECODE

help() {
    cat <<'TEXT'
usage: ./dev.sh VERB [arguments]

Try it
  demo [--ui]                  an embedded database through Airflow and Spark, in two minutes
  run DOCUMENT.yaml            run one pipeline without Airflow (deltaforge run)

Check it
  test [pytest arguments]      check, then all tests: what CI runs
  check                        lint, formatting, types, import rules
  lint                         ruff check and format check only
  fmt                          format the code and sort imports
  cov [pytest arguments]       the tests with a coverage report
  prove all | AREA… [options]  the long proofs: kills, DDL, open transactions …; --forecast, --jobs n,
                               --seeds n, --only TEXT, --resume
  bench [name]                 the measurements behind the figures in the docs

Servers (native, loopback only; state below .deltaforge/servers)
  up [names]                   start mysql postgres kafka redis nats, or of: mysql mariadb postgres postgres18 kafka redis nats
                               schema_registry
  down [names]                 stop them; their data stays
  ps                           which ones run, and their addresses
  k-create TOPIC [PARTITIONS]  create a Kafka topic
  k-list                       list the topics
  k-consume TOPIC [--from-beginning]
                               print a topic's messages
  k-produce TOPIC              send lines from standard input
  k-inspect TOPIC [COUNT]      offsets, keys, headers and first messages
  mysql-sh [arguments]         mysql shell
  pg-sh [arguments]            psql
  redis-cli [arguments]        redis-cli
  redis-read STREAM [COUNT]    print a Redis stream's entries
  nats-stream-add NAME SUBJECT create a JetStream stream
  nats-sub SUBJECT             print a subject's messages

Build it
  setup                        only install what the other verbs need
  build                        wheel and source distribution into dist/
  build-release                the same from an empty dist/, and a look into the wheel; links of the package's
                               page lead to DELTAFORGE_PROJECT_URL, its repository
  release-check                check, test, build-release, docs-build, docker-all: all that a release needs
  docs [PORT]                  build the site of docs/ and serve it on http://127.0.0.1:8400
  docs-build [DIRECTORY]       only build it, into .deltaforge/site; a broken link is an error

Container images (need a running docker; DELTAFORGE_IMAGE names them, default deltaforge:local)
  docker                       build the image
  docker-debug                 build the image with a shell's tools, on top of it
  docker-test                  run a pipeline in the image until it is healthy
  docker-test-debug            the same with the debug image
  docker-all                   build and test both
  docker-shell                 a shell in the debug image
  docker-multi-setup           make the builder for several architectures, once
  docker-multi [--push]        build for amd64 and arm64; without --push only to see that it works

The environment lives in .venv and is renewed when pyproject.toml changes.
DELTAFORGE_PYTHON names another Python (3.10 or later), DELTAFORGE_CACHE another download cache.
TEXT
}

say() { printf '── %s\n' "$*" >&2; }

die() {
    printf 'dev.sh: %s\n' "$*" >&2
    exit 1
}

# quietly WHAT COMMAND...: run with one line of progress; show the log's end only on failure.
quietly() {
    local what=$1 began=$SECONDS status=0
    shift
    mkdir -p "$(dirname "$SETUP_LOG")"
    printf '\n── %s: %s\n' "$what" "$*" >>"$SETUP_LOG"
    if [ ! -t 2 ]; then say "$what"; fi
    "$@" >>"$SETUP_LOG" 2>&1 &
    local child=$!
    trap 'kill "$child" 2>/dev/null; exit 130' INT TERM
    while [ -t 2 ] && kill -0 "$child" 2>/dev/null; do
        printf '\r── %s … %s s ' "$what" $((SECONDS - began)) >&2
        sleep 0.5
    done
    wait "$child" || status=$?
    trap - INT TERM
    if [ -t 2 ]; then printf '\r── %s: %s s   \n' "$what" $((SECONDS - began)) >&2; fi
    if [ "$status" -ne 0 ]; then tail -n 30 "$SETUP_LOG" >&2; fi
    return "$status"
}

# ---- packages of the machine

# apt_install REASON PACKAGE...: install, or say exactly what to install.
apt_install() {
    local reason=$1
    shift
    if ! command -v apt-get >/dev/null; then
        die "$reason. Install what corresponds to Debian's packages: $*"
    fi
    if [ "$(id -u)" -ne 0 ]; then
        die "$reason. Run: sudo apt-get install --no-install-recommends $*"
    fi
    local status=0
    forbid_starts
    quietly "$reason; installing $*" apt_get "$@" || status=$?
    allow_starts
    [ "$status" -eq 0 ] || die "apt-get could not install $*; the whole log is $SETUP_LOG"
}

apt_get() {
    apt-get -q update &&
        DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "$@"
}

# Debian starts a server when it is installed; exit code 101 of this file forbids that. A file of
# somebody else stays; ours goes again, also after an interrupted or killed installation.
forbid_starts() {
    [ ! -e "$POLICY" ] || return 0
    trap allow_starts EXIT
    printf '#!/bin/sh\n# made by DeltaForge dev.sh while it installs packages\nexit 101\n' >"$POLICY"
    chmod 755 "$POLICY"
}

allow_starts() {
    trap - EXIT
    if grep -q 'made by DeltaForge dev.sh' "$POLICY" 2>/dev/null; then rm -f "$POLICY"; fi
}

java_is_there() {
    local version
    version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
    [ "${version:-0}" -ge 17 ]
}

need_java() {
    java_is_there || apt_install "Java 17 or later is missing" default-jre-headless
    java_is_there || die "java is older than 17; set PATH or JAVA_HOME to Java 17 or later"
}

has() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; }

need_server() {
    case $1 in
    mysql) : ;; # fetched by tests/servers/mysql.py
    mariadb) has mariadbd || apt_install "MariaDB is missing" mariadb-server ;;
    postgres | postgres18) has postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ||
        apt_install "PostgreSQL is missing" postgresql ;;
    kafka | schema_registry)
        need_java
        has mvn || apt_install "Maven is missing (it fetches Kafka and the schema registry)" maven
        ;;
    redis) has redis-server || apt_install "Redis is missing" redis-server ;;
    nats) has nats-server || apt_install "NATS is missing" nats-server ;;
    *) die "unknown server '$1' (known: mysql mariadb postgres postgres18 kafka redis nats schema_registry)" ;;
    esac
}

need_test_servers() {
    local name
    for name in mysql mariadb postgres kafka redis nats; do need_server "$name"; done
    need_java
    has node || apt_install "Node.js is missing (tests run parts of the page in it)" nodejs
    has promtool || apt_install "promtool is missing (tests check the alert rules with it)" prometheus
    has chromium || apt_install "Chromium is missing (tests look at the page in it)" chromium
}

# ---- the environment

find_python() {
    local candidate
    for candidate in ${DELTAFORGE_PYTHON:-python3.12 python3.11 python3.13 python3.10 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

make_venv() {
    local python
    if ! python=$(find_python); then
        apt_install "Python 3.10 or later is missing" python3 python3-venv
        python=$(find_python) || die "this Debian has no Python 3.10; name one in DELTAFORGE_PYTHON"
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        apt_install "$python has no venv module" python3-venv
    fi
    say "creating $VENV with $("$python" --version)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
}

install_package() {
    if quietly "fetching the installer uv" "$PY" -m pip install uv &&
        quietly "installing the package and its tools" \
            "$PY" -m uv pip install --python "$PY" -e '.[dev]'; then
        # Spark's sources and what was built of them: nearly as much as all the rest.
        [ -z "${CI:-}" ] || timeout 60 "$PY" -m uv cache clean pyspark >/dev/null 2>&1 || true
        return
    fi
    quietly "uv could not install; trying pip" "$PY" -m pip install -e '.[dev]' ||
        die "the installation failed; the whole log is $SETUP_LOG"
}

setup() {
    local want
    want=$(sha256sum pyproject.toml airflow_provider_deltaforge/__init__.py | sha256sum | cut -c1-16)
    if [ -x "$PY" ] && [ "$(cat "$VENV/.installed" 2>/dev/null)" = "$want" ]; then
        precompile
        return
    fi
    # A moved or half-made environment cannot run its own pip: make it anew.
    "$PY" -m pip --version >/dev/null 2>&1 || make_venv
    say "setting up $VENV: about 2 GB, a few minutes the first time; log in $SETUP_LOG"
    rm -f "$VENV/.installed"
    install_package
    rm -f "$VENV/.precompiled"  # Other releases may have come.
    printf '%s' "$want" >"$VENV/.installed"
    precompile
}

# Kernels that were changed since are compiled where they are called, which tests would wait for.
precompile() {
    local want
    want=$(find airflow_provider_deltaforge -name '*_kernel.py' -o -path '*/columns/*.py' |
        LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-16)
    [ "$(cat "$VENV/.precompiled" 2>/dev/null)" = "$want" ] && return
    quietly "compiling the decoders and the processors" "$VENV/bin/deltaforge" precompile ||
        die "the kernels could not be compiled; the whole log is $SETUP_LOG"
    printf '%s' "$want" >"$VENV/.precompiled"
}

# ---- verbs

lint() {
    "$PY" -m ruff check .
    "$PY" -m ruff format --check .
}

check() {
    say "ruff"
    lint
    say "mypy"
    "$PY" -m mypy
    say "import rules"
    "$VENV/bin/lint-imports"
}

up() {
    local names=("$@") name
    [ $# -gt 0 ] || names=(mysql postgres kafka redis nats)
    for name in "${names[@]}"; do need_server "$name"; done
    "$PY" -m tests.servers up "${names[@]}"
}

# docs_build [DIRECTORY]: strict, and anew, because a page that has gone would stay in an old site.
docs_build() {
    local site=${1:-$SITE}
    "$PY" -m sphinx -q -E -W --keep-going -d "$SITE.pages" -b html docs "$site"
    say "built $site/index.html"
}

# ---- packages and images

build_release() {
    [ -n "${DELTAFORGE_PROJECT_URL:-}" ] ||
        say "DELTAFORGE_PROJECT_URL is not set: the package's page will have no links to the repository"
    rm -rf dist
    "$PY" -m build
    "$PY" -m pytest -q tests/architecture/test_packaging.py
    say "built $(ls dist | tr '\n' ' ')"
}

need_docker() {
    command -v docker >/dev/null || die "docker is missing: https://docs.docker.com/engine/install/"
    docker info >/dev/null 2>&1 || die "no docker daemon answers: start it, or set DOCKER_HOST"
}

docker_build() { docker build -t "$IMAGE" .; }

docker_build_debug() {
    docker image inspect "$IMAGE" >/dev/null 2>&1 || docker_build
    docker build -t "$IMAGE-debug" -f Dockerfile.debug --build-arg "BASE=$IMAGE" .
}

# docker_test IMAGE: a pipeline without any server, until the image says of itself that it is well.
docker_test() {
    local image=$1 name deadline=$((SECONDS + 120)) status=starting
    name=$(docker run -d -v "$PWD/tests/architecture/image.yaml:/etc/deltaforge/pipeline.yaml:ro" \
        "$image" --config /etc/deltaforge/pipeline.yaml)
    while [ "$status" = starting ] && [ $SECONDS -lt $deadline ]; do
        sleep 2
        status=$(docker inspect -f '{{.State.Health.Status}}' "$name") || status=gone
    done
    docker exec "$name" deltaforge status || status="$status, and its pipeline is not well"
    docker stop --time 40 "$name" >/dev/null
    if [ "$status" != healthy ]; then docker logs "$name" >&2; fi
    docker rm "$name" >/dev/null
    [ "$status" = healthy ] || die "$image is $status"
    say "$image is healthy"
}

docker_verb() {
    local verb=$1
    shift
    need_docker
    case $verb in
    docker) docker_build ;;
    docker-debug) docker_build_debug ;;
    docker-test) docker_test "$IMAGE" ;;
    docker-test-debug) docker_test "$IMAGE-debug" ;;
    docker-all)
        docker_build
        docker_test "$IMAGE"
        docker_build_debug
        docker_test "$IMAGE-debug"
        ;;
    docker-shell) exec docker run --rm -it --entrypoint /bin/bash "$IMAGE-debug" ;;
    docker-multi-setup) docker buildx create --name deltaforge --driver docker-container --bootstrap ;;
    docker-multi)
        docker buildx build --builder deltaforge --platform linux/amd64,linux/arm64 -t "$IMAGE" "$@" .
        ;;
    esac
}

main() {
    local verb=${1:-help}
    shift || true
    case $verb in demo | test) need_java ;; esac # Setting up keeps classes as this Java loads them.
    case $verb in
    help | -h | --help)
        help
        return
        ;;
    setup | demo | run | test | check | lint | fmt | cov | prove | bench | docs | docs-build) setup ;;
    build | build-release | release-check) setup ;;
    docker | docker-debug | docker-test | docker-test-debug | docker-all | docker-shell) ;;
    docker-multi-setup | docker-multi) ;;
    up | down | ps | k-create | k-list | k-consume | k-produce | k-inspect) setup ;;
    mysql-sh | pg-sh | redis-cli | redis-read | nats-stream-add | nats-sub) setup ;;
    *) die "unknown verb '$verb'; ./dev.sh help lists them" ;;
    esac
    case $verb in
    setup) say "ready" ;;
    demo)
        exec "$PY" -m tests.demo "$@"
        ;;
    run) exec "$VENV/bin/deltaforge" run "$@" ;;
    test)
        case "$*" in
        *tests/*) check ;; # Some of them: one after the other.
        *)
            # Beside the checks, so that the workers do not all compile the same tests.
            [ -d tests/__pycache__ ] || "$PY" -m pytest --collect-only -qq >/dev/null 2>&1 &
            check
            wait
            # Most tests wait for servers: four at a time keep two cores busy. Each worker has its
            # own servers, and a file's tests stay together; tests/ordering.py says which come
            # first. A crash ends the run: its test would be tried again, and may hang then.
            set -- -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 "$@"
            ;;
        esac
        need_test_servers
        say "pytest"
        exec "$PY" -m pytest "$@"
        ;;
    check) check ;;
    lint) lint ;;
    fmt)
        "$PY" -m ruff check --select I --fix .
        "$PY" -m ruff format .
        ;;
    cov)
        need_test_servers
        exec "$PY" -m pytest --cov=airflow_provider_deltaforge --cov-report=term-missing "$@"
        ;;
    prove)
        need_test_servers
        exec "$PY" -m tests.prove "$@"
        ;;
    bench)
        need_test_servers
        exec "$PY" -m benchmarks "$@"
        ;;
    up) up "$@" ;;
    down | ps) exec "$PY" -m tests.servers "$verb" "$@" ;;
    build) exec "$PY" -m build "$@" ;;
    build-release) build_release ;;
    release-check)
        need_docker
        ./dev.sh test
        build_release
        docs_build
        docker_verb docker-all
        ;;
    docker | docker-*) docker_verb "$verb" "$@" ;;
    docs)
        docs_build
        exec "$PY" -m http.server --bind 127.0.0.1 --directory "$SITE" "${1:-8400}"
        ;;
    docs-build) docs_build "$@" ;;
    *) exec "$PY" -m tests.servers.shell "$verb" "$@" ;;
    esac
}

# Sourced by its tests, which call the functions one by one.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then main "$@"; fi
