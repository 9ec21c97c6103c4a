"""The example documents of the pages, made to start here.

What this release does not do is taken out, and told: a sink that is not built gives its place to
a ``memory`` sink of the same id, destination, key, envelope and filter. Once it is built, nothing
is taken out, and the same example runs into the real one.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from airflow_provider_deltaforge.spec.load import load
from tests.spec.documents import DOCUMENTS

_KEPT = ("id", "key", "envelope", "encoding", "required", "filter")


def startable(stem: str, variables: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return a document and what had to be taken out of it, as ``key: what``.

    Args:
        stem: name of the document.
        variables: what ``${...}`` in it stands for.
    """
    document = yaml.safe_load(DOCUMENTS[stem].read_text())
    if document["spec"]["source"]["type"] == "turso":
        document["spec"]["source"]["config"]["url"] = variables["TURSO_URL"]
    taken: list[str] = []
    while missing := load(yaml.safe_dump(document), variables).unbuilt():
        for line in missing:
            assert not line.startswith("spec.processors"), f"{stem}: {line}"
            _take_out(document["spec"], line.split(":")[0])
        taken += missing
    return document, taken


def _take_out(spec: dict[str, Any], key: str) -> None:
    sinks = spec["sinks"]
    for number, sink in enumerate(sinks):
        at = f"spec.sinks[{number}]"
        if key == at:
            sinks[number] = _stand_in(sink)
        elif key.startswith(f"{at}.config."):
            sink["config"].pop(key.rpartition(".")[2], None)
    if not key.startswith("spec.sinks"):
        spec.pop(key.split(".")[1], None)


def _stand_in(sink: dict[str, Any]) -> dict[str, Any]:
    config = sink["config"]
    name = next(config[field] for field in ("subject", "stream", "url") if field in config)
    kept = {field: config[field] for field in _KEPT if field in config}
    return {"type": "memory", "config": {**kept, "topic": name}}
