"""The REST API of ``serve`` and ``run``: who may use it, from where, and its servers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from airflow_provider_deltaforge.api.access import Authority, by_token, on_this_machine
from airflow_provider_deltaforge.api.context import ApiContext, Elsewhere
from airflow_provider_deltaforge.api.server import serving, split_address
from airflow_provider_deltaforge.cli.options import err, opened
from airflow_provider_deltaforge.control import tokens
from airflow_provider_deltaforge.control.launching.contract import Backend
from airflow_provider_deltaforge.control.metrics import Observed, families, without_pushing
from airflow_provider_deltaforge.control.metrics import observe as observe_all
from airflow_provider_deltaforge.control.status import status, statuses
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.contract import Store

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})

NoAuthOption = Annotated[
    bool,
    typer.Option("--no-auth", help="Ask for no token; only on an address of this machine."),
]
CorsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        help="Let a browser's page of this origin use the API, as https://ops.example.com; "
        "repeatable. Without it only our own page may.",
    ),
]

_BESIDE_RUN = Elsewhere(
    documents="`deltaforge run` keeps to its documents: change the file and run it again, or use "
    "`deltaforge serve`",
    starts="run its document again",
)


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API listens, and whom it lets in.

    Attributes:
        api_addr: ``host:port``; ``off`` serves nothing.
        no_auth: ask for no token.
        origins: of pages elsewhere that may use it.
    """

    api_addr: str
    no_auth: bool = False
    origins: Sequence[str] = ()

    def check(self, *other_addresses: str) -> None:
        """Refuse what lets in more than was meant.

        Raises:
            SpecError: it listens to other machines and asks for no token, or an origin is none.
        """
        addresses = [text for text in (self.api_addr, *other_addresses) if text != "off"]
        hosts = [split_address(address)[0] for address in addresses]
        if self.no_auth and (open_to_all := [host for host in hosts if host not in _LOOPBACK]):
            raise SpecError(
                f"--no-auth: whoever reaches {open_to_all[0]} could do everything; listen on "
                "127.0.0.1, or leave it out and use tokens"
            )
        for origin in self.origins:
            parts = urlsplit(origin)
            if (
                parts.scheme not in {"http", "https"}
                or origin != f"{parts.scheme}://{parts.netloc}"
            ):
                raise SpecError(
                    f"--cors-origin: write scheme and host as a browser sends them, such as "
                    f"https://ops.example.com, not {origin!r}"
                )

    def authority(self, store: str) -> Authority:
        """Return what identifies the callers of a state store."""
        if self.no_auth:
            return on_this_machine(self.origins)
        return by_token(partial(opened, store))


def say_without_tokens(state: Store) -> None:
    """Print how to create a token while the store has none."""
    if not tokens.tokens(state):
        err.print(
            "nobody can use the REST API yet: `deltaforge token create NAME --scope admin` makes "
            "a token",
            style="yellow",
            highlight=False,
        )


@contextmanager
def serving_fleet(context: ApiContext, access: Access, metrics_addr: str) -> Iterator[str | None]:
    """Serve the REST API of many pipelines, and metrics, while the block runs; yield its URL.

    Where the address of either is ``off``, it is not served.

    Raises:
        SpecError: an address is taken, or the ``api`` extra is missing.
    """
    try:
        from airflow_provider_deltaforge.api.app import create_app, create_metrics_app
    except ImportError as error:
        raise SpecError("deltaforge serve needs airflow-provider-deltaforge[api]") from error
    with ExitStack() as servers:
        if metrics_addr != "off":
            url = servers.enter_context(serving(create_metrics_app(context), metrics_addr))
            err.print(f"metrics are at {url}/metrics", highlight=False)
        if access.api_addr == "off":
            yield None
            return
        app = create_app(context, origins=access.origins)
        yield servers.enter_context(serving(app, access.api_addr))


def fleet_metrics(context: ApiContext) -> Callable[[], Iterator[Any]]:
    """Return what collects the metrics that are sent from here; drivers may send their own."""

    def collect() -> Iterator[Any]:
        with context.open_store() as store:
            found = observe_all(store, statuses(store, context.backend))
        yield from families(without_pushing(found))
        yield from context.request_counts.families()

    return collect


def observed(store: Store, name: str, backend: Backend) -> Observed:
    """Return one pipeline with what its driver measures."""
    return observe_all(store, [status(store, name, backend)])[0]


def run_metrics(observe: Callable[[], Sequence[Observed]]) -> Callable[[], Iterator[Any]]:
    """Return what collects the metrics of these pipelines that are sent from here."""
    return lambda: families(without_pushing(observe()))


@contextmanager
def serving_run(
    observe: Callable[[], Sequence[Observed]],
    access: Access,
    store: str | None,
    backend: Backend | None,
    *,
    alone: bool = True,
) -> Iterator[None]:
    """Serve health and metrics of the pipelines of ``run``, and the REST API of their store.

    Args:
        observe: returns the pipelines that are run.
        access: where, and for whom.
        store: DSN of the one state store; with several there is no REST API.
        backend: where their drivers run.
        alone: see ``api.health.routes``.

    Raises:
        SpecError: the address is taken, or the ``api`` extra is missing.
    """
    if access.api_addr == "off":
        yield
        return
    try:
        from airflow_provider_deltaforge.api import app, health
    except ImportError as error:
        raise SpecError(
            "serving HTTP needs airflow-provider-deltaforge[api]; or pass --api-addr off"
        ) from error
    if store is None or backend is None:
        err.print("the documents name several state stores: no REST API, only health and metrics")
        served = health.create_app(lambda _: observe(), alone=alone)
    else:
        authority = access.authority(store)
        context = ApiContext(
            partial(opened, store), backend, None, authority, elsewhere=_BESIDE_RUN
        )
        counts = context.request_counts.exposition
        probes = health.routes_of(lambda _: observe(), alone=alone, more=counts)
        served = app.create_app(context, probes=probes, origins=access.origins)
    with serving(served, access.api_addr):
        yield
