"""``python -m tests.prove.compose_walk DIRECTORY``: start the services, use them, print cases."""

import contextlib
import json
import socket
import sys
import time
import traceback
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pymysql
import redis

from tests.prove.compose import STEPS
from tests.prove.compose_images import image_of, images
from tests.servers import compose
from tests.servers.airflow_rest import Rest
from tests.servers.compose import Service
from tests.servers.containers import Container, Network
from tests.servers.process import ServerError

_HEALTHY_S = 300.0
_PATIENCE_S = 420.0
_ROWS = 200


class Stack:
    """The services of the file, and how a person reaches them: by published ports."""

    def __init__(self, home: Path) -> None:
        self.file = compose.read()
        self.containers: dict[str, Container] = {}
        self.network = Network(home)

    def open(self) -> None:
        """Make the network and what stands for the images."""
        self.network.open([*self.file.services, "build"])
        self.images = images(self.network, self.file)

    def start(self, service: Service) -> dict[str, Any]:
        """Start a service, and wait as those wait that depend on it."""
        image = image_of(service, self.images)
        if image is None:
            return {"result": f"not possible: no package of this machine brings {service.image}"}
        began = time.monotonic()
        container = image.container(service, self.file, self.network)
        self.containers[service.name] = container.start()
        for _, outer, inner in service.ports:
            if not self._is_published(outer):
                self.network.publish(outer, service.name, inner)
        self.wait_for(service)
        return {"result": "ok", "start_s": round(time.monotonic() - began, 1)}

    def _is_published(self, port: int) -> bool:
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            return False
        return True

    def wait_for(self, service: Service) -> None:
        """Return when it is healthy, or, of one that has no health, when it has done its work."""
        container = self.containers[service.name]
        if service.health is None:
            if code := container.wait(_HEALTHY_S):
                raise ServerError(f"{service.name} ended with {code}:\n{container.log_tail()}")
            return
        deadline, told = time.monotonic() + _HEALTHY_S, ""
        while container.is_running and time.monotonic() < deadline:
            asked = container.run(service.health, seconds=90)
            if asked.returncode == 0:
                return
            told = (asked.stdout + asked.stderr)[-500:]
            time.sleep(1)
        raise ServerError(f"{service.name} is not healthy: {told}\n{container.log_tail()}")

    def again(self, name: str) -> None:
        """Start a service that was killed."""
        self.start(self.file.services[name])

    def in_container(self, name: str, *words: str) -> str:
        """Return what a command in a container prints, as ``docker compose exec`` does."""
        done = self.containers[name].run(words, seconds=120)
        if done.returncode:
            raise ServerError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def close(self) -> list[str]:
        """Stop everything; return what could not be."""
        for name in reversed(self.containers):
            self.containers[name].stop()
        return [name for name, container in self.containers.items() if container.is_running]


class User:
    """A person with the passwords that the file's first lines name."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.written = 0
        url = "http://127.0.0.1:8080"
        login = {"username": "admin", "password": "airflow-secret"}
        token = httpx.post(f"{url}/auth/token", json=login, timeout=60).json()["access_token"]
        self.rest = Rest(url, token)

    def write_orders(self) -> int:
        """Insert rows into MySQL; return how many there are."""
        account = {"user": "root", "password": "root-secret", "database": "shop"}
        with pymysql.connect(host="127.0.0.1", port=33306, **account) as shop:
            cursor = shop.cursor()
            for number in range(_ROWS):
                cursor.execute(
                    "INSERT INTO orders (customer, total) VALUES (%s, %s)", ("Dora", number)
                )
                shop.commit()
            cursor.execute("SELECT count(*) FROM orders")
            self.written += _ROWS
            return int(cursor.fetchone()[0])

    def orders_in_kafka(self) -> set[int]:
        """Return the keys of all rows that the topic holds."""
        from tests.sinks.kafka_reader import read_topic

        found = read_topic("127.0.0.1:39092", "shop.orders")
        return {json.loads(message.value)["after"]["id"] for message in found}

    def asks_prometheus(self, query: str) -> list[dict[str, Any]]:
        """Return the answer of Prometheus."""
        words = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"http://127.0.0.1:9090/api/v1/query?{words}") as answer:
            return list(json.load(answer)["data"]["result"])

    def status(self, pipeline: str) -> str:
        """Return a pipeline's status as the page shows it."""
        volumes = self.stack.network.directory / "volumes"
        token = (volumes / "metrics-token" / "token").read_text().strip()
        asked = httpx.get(
            f"http://127.0.0.1:8090/pipelines/{pipeline}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
        )
        return str(asked.json().get("status")) if asked.status_code == 200 else "unknown"

    def unpause(self, dag_id: str) -> None:
        """Let a DAG run."""
        self.rest.wait_for_dag(dag_id)
        self.rest.unpause(dag_id)

    def streaming(self, dag_id: str, pipeline: str) -> str:
        """Wait until the first run of a DAG watches its stream; return the run."""
        until(lambda: self.rest.runs(dag_id))
        run = str(self.rest.runs(dag_id)[0]["dag_run_id"])
        self.rest.wait_task(dag_id, run, "stream", ["deferred"], _PATIENCE_S)
        until(lambda: self.status(pipeline) == "running")
        return run


def until(condition: Callable[[], Any]) -> Any:
    """Wait for something that takes its time; return it."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with contextlib.suppress(OSError, httpx.HTTPError):
            if found := condition():
                return found
        if time.monotonic() > deadline:
            raise ServerError(f"not within {_PATIENCE_S:.0f} s")
        time.sleep(1)


def steps(stack: Stack) -> Iterator[dict[str, Any]]:
    """Walk through the steps of the area, in their order; yield what was seen at each."""
    user = User(stack)
    names = {"orders_pipeline", "orders_arrived", "orders_resnapshot", "customers"}
    for name in names:
        user.rest.wait_for_dag(name)
    found = {dag["dag_id"] for dag in user.rest.get("/dags")["dags"]}
    check(found == names, f"DAGs: {sorted(found)}")
    check(not user.rest.get("/importErrors")["import_errors"], "there are import errors")
    yield {"dags": sorted(found)}

    for name in ("orders_arrived", "orders_pipeline", "customers"):
        user.unpause(name)
    user.rest.parse_again("orders_arrived")
    run = user.streaming("orders_pipeline", "orders")
    yield _on_the_cluster(stack, user, run)

    count = user.write_orders()
    until(lambda: user.orders_in_kafka() == set(range(1, count + 1)))
    yield {"rows": count}

    yield _customers(user)

    text = json.dumps(until(lambda: _driver_lines(user, run)))
    yield {"lines": text.count("driver: ")}

    yield _arrived(user)

    yield _metrics(user)

    for name in ("airflow-worker", "airflow-scheduler", "airflow-triggerer"):
        stack.containers[name].kill()
    count = user.write_orders()
    until(lambda: user.orders_in_kafka() == set(range(1, count + 1)))
    check(user.status("orders") == "running", user.status("orders"))
    yield {"rows": count}

    yield _copied_again(stack, user)

    user.rest.pause("orders_pipeline")
    stack.in_container("deltaforge", "deltaforge", "stop", "orders")
    until(lambda: user.status("orders") == "stopped")
    on_worker = stack.containers["spark-worker"]
    until(lambda: "--pipeline orders" not in " ".join(on_worker.command_lines()))
    yield {}

    user.rest.close()
    left = stack.close()
    check(not left, f"running still: {left}")
    yield {}


def _on_the_cluster(stack: Stack, user: User, run: str) -> dict[str, Any]:
    """Return where the first stream was launched, and where it runs."""
    task = user.rest.task("orders_pipeline", run, "stream")
    driver = user.rest.xcom("orders_pipeline", run, "stream", "driver")
    on_worker = " ".join(stack.containers["spark-worker"].command_lines())
    check("deltaforge_stream_job.py --pipeline orders" in on_worker, on_worker[-2000:])
    check("airflow-worker" in str(task["hostname"]), f"launched by {task['hostname']}")
    return {
        "submission": driver["submission_id"],
        "queue": task["queue"],
        "launched_by": task["hostname"],
    }


def _metrics(user: User) -> dict[str, Any]:
    """Wait until Prometheus has what both drivers measure, and all rules."""
    wanted = {"orders": 1.0, "customers": 1.0}
    until(lambda: _by_pipeline(user, "deltaforge_pipeline_status") == wanted)
    until(lambda: _by_pipeline(user, "deltaforge_sink_events_total").get("orders", 0) >= _ROWS)
    with urllib.request.urlopen("http://127.0.0.1:9090/api/v1/rules") as answer:
        groups = json.load(answer)["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    check(all(rule["health"] != "err" for rule in rules), f"{rules}")
    return {"up": user.asks_prometheus("up")[0]["value"][1], "rules": len(rules)}


def _customers(user: User) -> dict[str, Any]:
    """Watch the second pipeline, of which a row is changed as well."""
    user.streaming("customers", "customers")
    place = "postgresql://airflow:airflow-secret@127.0.0.1:35432/crm"
    with psycopg.connect(place, autocommit=True) as crm:
        crm.execute("UPDATE customers SET city = 'Wels' WHERE name = 'Bob'")
    cache = redis.Redis(port=36379)
    until(lambda: cache.xlen("customers") == 4)
    messages = until(lambda: _stream_length() == 4 and _stream_length())
    return {"redis_entries": cache.xlen("customers"), "nats_messages": messages}


def _stream_length() -> int:
    import asyncio

    import nats

    async def ask() -> int:
        client = await nats.connect("nats://127.0.0.1:34222")
        told = await client.jetstream().stream_info("CUSTOMERS")
        await client.close()
        return int(told.state.messages)

    return asyncio.run(ask())


def _driver_lines(user: User, run: str) -> Any:
    log = user.rest.log("orders_pipeline", run, "stream")
    return log if "driver: " in json.dumps(log) else None


def _arrived(user: User) -> dict[str, Any]:
    """Wait until runs that rows scheduled have been told of all that were written."""

    def told() -> list[Any]:
        runs = user.rest.runs("orders_arrived")
        ended = [run["dag_run_id"] for run in runs if run["state"] == "success"]
        return [user.rest.xcom("orders_arrived", run, "report") for run in ended]

    until(lambda: sum(each["rows"] for each in told()) >= user.written)
    last = told()[-1]
    check(bool(last["position"]), f"{last}")
    return {"rows": sum(each["rows"] for each in told()), "position": last["position"]}


def _by_pipeline(user: User, metric: str) -> dict[str, float]:
    found = user.asks_prometheus(f"sum by (pipeline) ({metric})")
    return {each["metric"]["pipeline"]: float(each["value"][1]) for each in found}


def _copied_again(stack: Stack, user: User) -> dict[str, Any]:
    """Start Airflow's parts again, and have a copy made beside the stream."""
    for name in ("airflow-scheduler", "airflow-triggerer", "airflow-worker"):
        stack.again(name)
    user.unpause("orders_resnapshot")
    conf = {"tables": ["shop.orders"], "where": "id <= 2", "mode": "always"}
    run = user.rest.trigger("orders_resnapshot", conf)
    state = user.rest.wait_run("orders_resnapshot", run, patience_s=_PATIENCE_S)
    check(
        state == "success", json.dumps(user.rest.log("orders_resnapshot", run, "snapshot"))[-3000:]
    )
    counts = user.rest.xcom("orders_resnapshot", run, "snapshot")
    rows = counts["tables"]["shop.orders"]["rows"]
    check(rows == 2, f"{rows} rows")
    return {"rows": rows}


def check(holds: bool, words: str) -> None:
    """Say what is wrong.

    Raises:
        ServerError: it does not hold.
    """
    if not holds:
        raise ServerError(words)


def main() -> None:
    """Print a case for each service and step; stop at the first that is wrong."""
    stack = Stack(Path(sys.argv[1]))
    name: dict[str, str] = {"service": "the images"}
    try:
        stack.open()
        for service in stack.file.in_order():
            name = {"service": service.name}
            began = time.monotonic()
            tell({**name, **stack.start(service)}, began)
        walk = steps(stack)
        for step in STEPS:
            name, began = {"step": step}, time.monotonic()
            tell({**name, "result": "ok", **next(walk)}, began)
    except BaseException as error:  # noqa: BLE001 - what is wrong is a result
        traceback.print_exc()
        tell({**name, "result": "wrong", "wrong": [f"{type(error).__name__}: {error}"[-3000:]]}, 0)
    finally:
        stack.close()


def tell(case: dict[str, Any], began: float) -> None:
    """Print a case."""
    seconds = round(time.monotonic() - began, 1) if began else 0
    print(json.dumps({**case, "seconds": seconds}, default=str), flush=True)


if __name__ == "__main__":
    main()
