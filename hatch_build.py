"""The page of the package index: the README, with links that lead somewhere from there.

``DELTAFORGE_PROJECT_URL``, set where a release is built, is the repository on a forge whose files
are below ``blob/`` and ``raw/``. Links to files become links to them at the release's tag, and the
index shows the project's pages. Without it, links into the repository become plain text: a text
without a link is better than a link to nothing.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

URL = "DELTAFORGE_PROJECT_URL"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#|mailto:)([^()\s]+)\)")


def readme_for_index(text: str, base: str, version: str) -> str:
    """Return a README whose links into the repository are absolute, or gone without a ``base``."""

    def link(found: re.Match[str]) -> str:
        image, words, path = found.groups()
        if not base:
            return "" if image else words
        kind = "raw" if image else "blob"
        return f"{image}[{words}]({base}/{kind}/v{version}/{path})"

    return _LINK.sub(link, text)


def project_urls(base: str, version: str) -> dict[str, str]:
    """Return the links that the index shows beside the page."""
    if not base:
        return {}
    return {
        "Homepage": base,
        "Source": base,
        "Documentation": f"{base}/blob/v{version}/docs/index.md",
        "Changelog": f"{base}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{base}/issues",
    }


class IndexPage(MetadataHookInterface):
    """Fills in ``readme`` and ``urls``, which pyproject.toml declares dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both; the version is known by then."""
        base = os.environ.get(URL, "").rstrip("/")
        version = self._version()
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": readme_for_index(text, base, version),
        }
        metadata["urls"] = project_urls(base, version)

    def _version(self) -> str:
        text = (Path(self.root) / "airflow_provider_deltaforge" / "__init__.py").read_text()
        found = re.search(r'^__version__\s*=\s*"([^"]+)"', text, re.MULTILINE)
        if found is None:
            raise ValueError("airflow_provider_deltaforge/__init__.py names no __version__")
        return found[1]
