"""What stands for the images of ``docker-compose.airflow.yml``: this machine's own programs.

An image's entry point is written anew here, as far as its documentation says what it does with
variables and files; the commands, environments, mounts and conditions are those of the file.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.architecture.test_images import steps_of
from tests.servers import cache, kafka, mysql
from tests.servers.compose import ROOT, Compose, Service
from tests.servers.containers import Container, Network
from tests.servers.process import ServerError

_VENV = Path(sys.executable).parent
_SITE = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOBODY = 65534


@dataclass(frozen=True)
class Image:
    """What a service finds beside what the file says.

    Args:
        environment: variables that the image sets.
        entry: words in front of the command.
        command: what runs where the file has none.
        user: user and group.
        account: the user's name.
        folder: working directory.
        owned: folders of the image that belong to its user; new volumes there do, too.
        binds: programs by path.
        files: texts by path.
        reaps: its first process takes over orphans.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    entry: Sequence[str] = ()
    command: Sequence[str] = ()
    user: tuple[int, int] = (0, 0)
    account: str = ""
    folder: str = "/"
    owned: Sequence[str] = ()
    binds: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    reaps: bool = False

    @property
    def prepare(self) -> str:
        """Return what root does in each container of the image, in a shell's words."""
        uid, gid = self.user
        lines = [f"mkdir -p {path}; chown {uid}:{gid} {path}" for path in self.owned]
        if self.account:
            entry = f"{self.account}:x:{uid}:{gid}::{self.environment.get('HOME', '/')}:/bin/sh"
            lines.append(f"echo {entry} >> /etc/passwd")
        return "; ".join(lines)

    def container(self, service: Service, compose: Compose, network: Network) -> Container:
        """Return a service as a container; its volumes are folders beside the network's files."""
        binds, owned = dict(self.binds), set(self.owned)
        for mount in service.mounts:
            source = mount.file or network.directory / "volumes" / mount.source
            if mount.file is None and not source.exists():
                source.mkdir(parents=True)
                if mount.target in owned:
                    os.chown(source, *self.user)
            binds[mount.target] = (source, "ro" if mount.read_only else "rw")
        configs = {path: compose.config(name) for path, name in service.configs.items()}
        user = service.spec.get("user")
        return Container(
            service.name,
            network,
            [*self.entry, *(service.command or self.command)],
            {**self.environment, **service.environment},
            user=self.user if user is None else tuple(map(int, user.split(":"))),  # type: ignore[arg-type]
            folder=self.folder,
            binds=binds,
            files={**self.files, **configs},
            prepare=self.prepare,
            reaps=self.reaps,
        )


def images(network: Network, compose: Compose) -> dict[str, Image]:
    """Return what there is, by the image's name without its tag; building takes a minute.

    Args:
        network: with an address for the container ``build``.
        compose: the file.
    """
    [dockerfile] = {
        service.spec["build"]["dockerfile_inline"]
        for service in compose.services.values()
        if service.image == "deltaforge-spark:local"
    }
    return {
        "mysql": _mysql(),
        "postgres": _postgres(),
        "apache/kafka": _kafka(),
        # The image is built so that the server talks to others without a password.
        "redis": Image(
            entry=["sh", "-c", 'exec "$@" --protected-mode no', "redis"],
            folder="/data",
            owned=("/data",),
        ),
        "nats": Image(owned=("/data",)),
        "deltaforge-spark": _deltaforge(network, dockerfile),
        "deltaforge-airflow": _airflow(),
        "prom/prometheus": Image(
            entry=["prometheus"], user=(_NOBODY, _NOBODY), owned=("/prometheus",)
        ),
    }


def image_of(service: Service, known: Mapping[str, Image]) -> Image | None:
    """Return what stands for a service's image; None where this machine has no such program."""
    return known.get(service.image.partition(":")[0])


def _airflow() -> Image:
    """Airflow, Celery and the package from the environment of the tests."""
    return Image(
        environment={
            "PATH": f"{_VENV}:{_SYSTEM}",
            "HOME": "/home/airflow",
            "AIRFLOW_HOME": "/opt/airflow",
            "PYTHONUNBUFFERED": "1",
        },
        entry=["/entrypoint"],
        user=(50000, 0),
        account="airflow",
        folder="/opt/airflow",
        owned=("/opt/airflow", "/opt/airflow/logs", "/opt/airflow/state", "/home/airflow"),
        files={
            "/entrypoint": "#!/bin/bash\n"
            'case "$1" in bash | python | airflow) exec "$@" ;; *) exec airflow "$@" ;; esac\n'
        },
        reaps=True,
    )


def _deltaforge(network: Network, dockerfile: str) -> Image:
    """Return the package as a wheel in an environment of its own, and what its Dockerfile sets."""
    home = network.directory
    place, kernels = home / "deltaforge", home / "kernels"
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home)], cwd=ROOT)
    [wheel] = home.glob("*.whl")
    place.mkdir()
    kernels.mkdir()
    steps = steps_of(dockerfile)
    runtime = steps[max(i for i, (word, _) in enumerate(steps) if word == "FROM") :]
    last = dict(runtime)
    variables = dict(part.split("=", 1) for part in shlex.split(last["ENV"]))
    variables["PATH"] = variables["PATH"].replace("$PATH", _SYSTEM)
    user, folder = int(last["USER"]), last["WORKDIR"]
    made = re.findall(r"install -d -o deltaforge -g deltaforge (\S+)", last["RUN"])
    image = Image(
        environment={**variables, "HOME": folder},
        command=json.loads(last["CMD"]),
        user=(user, user),
        account="deltaforge",
        folder=folder,
        owned=(folder, *made),
        binds={"/opt/deltaforge": (place, "ro"), "/opt/kernels": (kernels, "rw")},
        reaps=json.loads(last["ENTRYPOINT"])[0] == "tini",
    )
    # At the path that the image has: scripts name their interpreter.
    install = (
        f"{sys.executable} -m venv --without-pip /opt/deltaforge; "
        f"{sys.executable} -m pip --python /opt/deltaforge/bin/python "
        f"install --quiet --no-deps --no-index /wheel/{wheel.name}"
    )
    binds = {"/opt/deltaforge": (place, "rw"), f"/wheel/{wheel.name}": (wheel, "ro")}
    _build(Container("build", network, ["sh", "-ec", install], {}, binds=binds))
    [site] = place.glob("lib/python*/site-packages")
    # A line of a .pth file is a path, and the .pth files there are not read: nor is our checkout.
    (site / "dependencies.pth").write_text(f"{_SITE}\n")
    (place / "spark").symlink_to(_SITE / "pyspark")
    shutil.copytree(_compiled(image, dockerfile, network, wheel), kernels, dirs_exist_ok=True)
    for path in (kernels, *kernels.rglob("*")):
        os.chown(path, user, user)
    return image


def _compiled(image: Image, dockerfile: str, network: Network, wheel: Path) -> Path:
    """Return the kernels, compiled as the Dockerfile does; kept for the next run of this wheel."""
    modules = re.findall(r"-m (airflow_provider_deltaforge[\w.]+)", dockerfile)
    words = ["sh", "-ec", "; ".join(f"/opt/deltaforge/bin/python -m {name}" for name in modules)]

    def build(scratch: Path) -> None:
        os.chown(scratch, *image.user)
        made = replace(image, binds={**image.binds, "/opt/kernels": (scratch, "rw")})
        _build(
            Container(
                "build",
                network,
                words,
                made.environment,
                user=made.user,
                binds=made.binds,
                prepare=made.prepare,
            )
        )

    key = hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]
    with cache.locked("kernels"):
        return cache.entry("kernels", key, build)


def _build(container: Container) -> None:
    if code := container.start().wait(900):
        raise ServerError(f"an image was not built ({code}):\n{container.log_tail()}")


def _mysql() -> Image:
    """MySQL 9: a data folder is made, and the files of initdb.d are run, before it listens."""
    program, places = mysql.server_program()
    shared = ["--no-defaults", *places, "--datadir=/var/lib/mysql", "--user=root", "--mysqlx=OFF"]
    shared += ["--secure-file-priv=NULL"]
    client = shlex.join(mysql.client_command())
    server = shlex.join([*program, *shared])
    entry = f"""#!/bin/bash
set -e
if [ ! -d /var/lib/mysql/mysql ]; then
    {server} --initialize-insecure
    {server} "$@" --skip-networking --socket=/tmp/first.sock &
    until {client} -uroot -S /tmp/first.sock -e 'SELECT 1' >/dev/null 2>&1; do sleep 0.2; done
    {{
        echo "CREATE DATABASE $MYSQL_DATABASE; USE $MYSQL_DATABASE;"
        cat /docker-entrypoint-initdb.d/*.sql
        echo "CREATE USER root@'%' IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';"
        echo "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;"
        echo "ALTER USER root@localhost IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';"
    }} | {client} -uroot -S /tmp/first.sock
    kill %1
    wait %1 || true
fi
exec {server} --socket=/tmp/mysql.sock "$@"
"""
    shell = f'#!/bin/sh\nexec {client} "$@"\n'
    return Image(
        entry=["/entrypoint"],
        owned=("/var/lib/mysql",),
        files={"/entrypoint": entry, "/usr/local/bin/mysql": shell},
    )


def _postgres() -> Image:
    """PostgreSQL of this machine: a database and the files of initdb.d, then it listens to all."""
    import pwd

    account = pwd.getpwnam("postgres")
    [*_, programs] = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    entry = """#!/bin/bash
set -e
if [ ! -s $PGDATA/PG_VERSION ]; then
    initdb -D $PGDATA -U $POSTGRES_USER --auth-local=trust --auth-host=scram-sha-256 \\
        --pwfile=<(echo "$POSTGRES_PASSWORD") -E UTF8 --locale=C.UTF-8
    echo "host all all all scram-sha-256" >> $PGDATA/pg_hba.conf
    echo "listen_addresses = '*'" >> $PGDATA/postgresql.conf
    echo "unix_socket_directories = '/tmp'" >> $PGDATA/postgresql.conf
    pg_ctl -D $PGDATA -o "-c listen_addresses=''" -w start
    [ "$POSTGRES_DB" = postgres ] || createdb -h /tmp -U $POSTGRES_USER $POSTGRES_DB
    for file in /docker-entrypoint-initdb.d/*.sql; do
        psql -h /tmp -v ON_ERROR_STOP=1 -U $POSTGRES_USER -d $POSTGRES_DB -f $file
    done
    pg_ctl -D $PGDATA -m fast -w stop
fi
exec "$@"
"""
    return Image(
        environment={"PATH": f"{programs}:{_SYSTEM}", "PGDATA": "/var/lib/postgresql/data"},
        entry=["/entrypoint"],
        user=(account.pw_uid, account.pw_gid),
        owned=("/var/lib/postgresql/data",),
        files={"/entrypoint": entry},
    )


def _kafka() -> Image:
    """The broker's jars: settings from variables, storage formatted once."""
    java = shutil.which("java") or "java"
    classes = f"{java} -Xmx512m -cp '{kafka.jars()}/*'"
    entry = f"""#!/bin/bash
set -e
env | sed -n 's/^KAFKA_//p' | while IFS= read -r line; do
    key=${{line%%=*}}
    echo "$(echo $key | tr 'A-Z_' 'a-z.')=${{line#*=}}"
done > /tmp/server.properties
if [ ! -s $KAFKA_LOG_DIRS/meta.properties ]; then
    {classes} kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qk -c /tmp/server.properties
fi
exec {classes} kafka.Kafka /tmp/server.properties
"""
    # kafka-topics.sh is not among the broker's jars.
    topics = f"""#!{sys.executable}
import sys
from confluent_kafka.admin import AdminClient
print(*AdminClient({{"bootstrap.servers": sys.argv[2]}}).list_topics(timeout=5).topics, sep="\\n")
"""
    return Image(
        entry=["/entrypoint"],
        user=(1000, 1000),
        account="appuser",
        owned=("/var/lib/kafka/data",),
        files={"/entrypoint": entry, "/opt/kafka/bin/kafka-topics.sh": topics},
    )


def _run(words: Sequence[str], cwd: Path | None = None) -> None:
    done = subprocess.run(words, cwd=cwd, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ServerError(f"{' '.join(words[:4])} failed:\n{(done.stdout + done.stderr)[-3000:]}")
