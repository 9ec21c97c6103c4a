"""``deltaforge driver``: one pipeline's driver as a process of its own, without Spark.

Started by ``deltaforge serve``; nobody types it. The state store comes from the environment.
"""

from typing import Annotated

import typer

from airflow_provider_deltaforge.cli.shutdown import stop_signals
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.telemetry import logs


def driver(
    pipeline: Annotated[str, typer.Option(help="Name, as applied to the state store.")],
    generation: Annotated[int, typer.Option(help="Of the control record.")],
) -> None:
    """Run one pipeline until it is asked to end; the exit code says how it ended."""
    from airflow_provider_deltaforge.control.push import pushing_pipeline
    from airflow_provider_deltaforge.engine.driver.local import run_local

    logs.configure({"pipeline": pipeline})
    location = StoreLocation.from_environment()
    with stop_signals() as leaving, pushing_pipeline(pipeline, location) as pushes:
        code = run_local(pipeline, location, generation, leaving, pushes_metrics=pushes)
    raise typer.Exit(code)


def register(app: typer.Typer) -> None:
    """Add the command to the application, where no help shows it."""
    app.command(hidden=True)(driver)
