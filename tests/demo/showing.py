"""What people see while they wait: a line per step, and below it what happens at the moment."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

Line = tuple[str, str, str]
"""What, its state, and more that changes all the time."""

_COLOURS = {"success": "green", "failed": "bold red", "running": "cyan", "deferred": "cyan"}
_WORDS = {"deferred": "deferred, holds no slot"}


class Show:
    """Writes on one console; without a terminal only what will not change."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    @contextmanager
    def step(self, title: str, lines: Callable[[], Sequence[Line]] = lambda: ()) -> Iterator[None]:
        """Show a step with its seconds while the block runs, and that it is done afterwards.

        Args:
            title: what is done.
            lines: what happens in it, asked four times a second; must not wait.
        """
        began, over = time.monotonic(), threading.Event()
        told: dict[str, str] = {}

        def note() -> None:
            for what, state, _ in lines():
                if state and told.get(what) != state:
                    told[what] = state
                    self.console.print(f"  [{self.elapsed_s:3.0f} s] {what}: {state}", markup=False)

        with self.console.status(title) as spinner:

            def tick() -> None:
                while not over.wait(0.25):
                    if self.console.is_terminal:
                        spinner.update(_picture(title, time.monotonic() - began, lines()))
                    else:
                        note()

            thread = threading.Thread(target=tick, daemon=True, name="step")
            thread.start()
            try:
                yield
            except Exception:
                self.console.print(f"[red]✗[/] {title}", highlight=False)
                raise
            finally:
                over.set()
                thread.join(2)
        if not self.console.is_terminal:
            note()
        self.console.print(
            f"[green]✓[/] {title} [dim]({time.monotonic() - began:.0f} s)[/]", highlight=False
        )


def _picture(title: str, seconds: float, lines: Sequence[Line]) -> Text:
    picture = Text.assemble(f"{title} ", (f"{seconds:.0f} s", "dim"))
    for what, state, more in lines:
        picture.append(f"\n    {what:<10}")
        picture.append(f" {_WORDS.get(state, state) or 'waiting'}", _COLOURS.get(state, "dim"))
        picture.append(f"  {more}" if more else "", "bold")
    return picture
