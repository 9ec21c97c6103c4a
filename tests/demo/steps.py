"""What people see while they wait: one line per step, with the seconds it has taken so far."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def step(console: Console, title: str, now: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Show a step with its seconds while the block runs, and that it is done afterwards.

    Args:
        console: where; without a terminal only the last line is printed.
        title: what is done.
        now: more about it, asked twice a second.
    """
    began, over = time.monotonic(), threading.Event()

    def line() -> str:
        return f"{title} … {time.monotonic() - began:.0f} s  {now()}"

    with console.status(title) as spinner:

        def tick() -> None:
            while not over.wait(0.5):
                spinner.update(line())

        thread = threading.Thread(target=tick, daemon=True, name="step")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(2)
    console.print(f"[green]✓[/] {title} ({time.monotonic() - began:.0f} s)", highlight=False)
