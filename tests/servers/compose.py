"""``docker-compose.airflow.yml`` as Docker Compose reads it, for tests that have no engine."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.airflow.yml"
COMPLETED, HEALTHY = "service_completed_successfully", "service_healthy"
_SINGLE = re.compile(r"(?<!\$)(?:\$\$)*\$(?!\$)")


@dataclass(frozen=True)
class Mount:
    """What a service finds at a path: a file or folder of the checkout, or a named volume."""

    source: str
    target: str
    read_only: bool

    @property
    def file(self) -> Path | None:
        """Return the file or folder of the checkout; None for a volume."""
        return (ROOT / self.source).resolve() if self.source.startswith(".") else None


@dataclass(frozen=True)
class Service:
    """One service of the file."""

    name: str
    spec: Mapping[str, Any]

    @property
    def image(self) -> str:
        """Return the name of its image."""
        return str(self.spec["image"])

    @property
    def command(self) -> list[str]:
        """Return the words of its command; none: what the image runs."""
        return words_of(self.spec.get("command"))

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that the file sets."""
        return {name: str(value) for name, value in self.spec.get("environment", {}).items()}

    @property
    def mounts(self) -> list[Mount]:
        """Return its volumes."""
        parts = [volume.split(":") for volume in self.spec.get("volumes", ())]
        return [Mount(part[0], part[1], part[2:] == ["ro"]) for part in parts]

    @property
    def configs(self) -> dict[str, str]:
        """Return the names of its configs by their paths."""
        return {each["target"]: each["source"] for each in self.spec.get("configs", ())}

    @property
    def health(self) -> list[str] | None:
        """Return what is executed to ask for its health."""
        if "healthcheck" not in self.spec:
            return None
        kind, *words = self.spec["healthcheck"]["test"]
        return ["sh", "-c", *words] if kind == "CMD-SHELL" else words

    @property
    def needs(self) -> dict[str, str]:
        """Return the conditions under which it starts, by service."""
        return {name: told["condition"] for name, told in self.spec.get("depends_on", {}).items()}

    @property
    def ports(self) -> list[tuple[str, int, int]]:
        """Return address, published port and own port of each published one."""
        split = [port.split(":") for port in self.spec.get("ports", ())]
        return [(address, int(outer), int(inner)) for address, outer, inner in split]


@dataclass(frozen=True)
class Compose:
    """The whole file."""

    spec: Mapping[str, Any]

    @property
    def services(self) -> dict[str, Service]:
        """Return the services by name."""
        return {name: Service(name, spec) for name, spec in self.spec["services"].items()}

    def config(self, name: str) -> str:
        """Return what a config holds."""
        return str(self.spec["configs"][name]["content"])

    def in_order(self) -> list[Service]:
        """Return the services, each behind those that it waits for."""
        ordered: dict[str, Service] = {}

        def add(service: Service) -> None:
            for needed in service.needs:
                add(self.services[needed])
            ordered.setdefault(service.name, service)

        for service in self.services.values():
            add(service)
        return list(ordered.values())


def read(file: Path = FILE) -> Compose:
    """Return the file: anchors merged, and two dollar signs for one.

    Raises:
        ValueError: a dollar sign stands alone, which Compose takes for a variable of its caller.
    """
    spec = yaml.safe_load(file.read_text())
    if alone := [text for text in _texts(spec) if _SINGLE.search(text)]:
        raise ValueError(f"write $$ for a dollar sign: {alone[0]!r}")
    return Compose(_unescaped(spec))


def words_of(command: str | Sequence[str] | None) -> list[str]:
    """Return a command's words; a text is split at spaces, as it holds no quotes."""
    if command is None:
        return []
    return command.split() if isinstance(command, str) else [str(word) for word in command]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _unescaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$$", "$")
    if isinstance(value, Mapping):
        return {key: _unescaped(each) for key, each in value.items()}
    return [_unescaped(each) for each in value] if isinstance(value, list) else value
