"""How the pages become a site: ``./dev.sh docs``. See ``docs/decisions/docs.md``."""

import re

from airflow_provider_deltaforge import __version__

project = "DeltaForge for Airflow and Spark"
author = "DeltaForge"
project_copyright = "Apache-2.0"
release = version = __version__

extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["proofs/*"]
nitpicky = True
# A command over several lines, as people paste it, has no prompt on each.
suppress_warnings = ["misc.highlighting_failure"]

# Anchors as Git hosts make them, for links such as `operations.md#failed`.
myst_heading_anchors = 4
# A bare address in a sentence is an example, not a link.
myst_enable_extensions: list[str] = []

html_theme = "furo"
html_title = "DeltaForge"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_favicon = "../airflow_provider_deltaforge/page/icon.svg"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_last_updated_fmt = None
pygments_style = "friendly"
pygments_dark_style = "github-dark"

_LINK = re.compile(r"\[([^\]]+)\]\(([\w./-]+\.md)(?:#[\w-]*)?\)")
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


def navigation(text: str) -> str:
    """Return hidden tables of contents for a page of lists: one for each of its sections.

    Args:
        text: the page; a page that is linked twice belongs to the first section.
    """
    parts = _SECTION.split(text)
    titles, bodies = parts[1::2], parts[2::2]
    seen: set[str] = set()
    trees = []
    for title, body in zip(titles, bodies, strict=True):
        names = {page: name for name, page in reversed(_LINK.findall(body)) if page not in seen}
        seen.update(names)
        if names:
            entries = "\n".join(f"{_title(names[page])} <{page}>" for page in reversed(names))
            trees.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```")
    return "\n\n".join(trees)


def _title(words: str) -> str:
    plain = words.replace("`", "")
    return plain[0].upper() + plain[1:]


def _add_navigation(_app: object, name: str, source: list[str]) -> None:
    if name in {"index", "decisions/index"}:
        source[0] = f"{source[0]}\n\n{navigation(source[0])}\n"


def setup(app: "sphinx.application.Sphinx") -> None:  # type: ignore[name-defined] # noqa: F821
    """Let Sphinx read the lists as navigation."""
    app.connect("source-read", _add_navigation)
