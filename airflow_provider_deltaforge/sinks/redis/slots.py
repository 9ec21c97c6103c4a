"""Hash tags: what lies in one slot of a cluster can be written in one step."""

import re

_FIELD = re.compile(r"\$\{[^}]*\}")
_TAG = re.compile(r"\{([^{}]+)\}")


def tag_of(template: str) -> str | None:
    """Return what decides the slot of every stream a template can name; None if fields do.

    Args:
        template: of the stream's name; a name without fields and without a tag is its own tag.
    """
    named = _FIELD.search(template)
    fixed = template if named is None else template[: named.start()]
    if "{" in fixed or "}" in fixed:
        # Redis takes what stands between the first brace and the next closing one.
        tag = _TAG.search(fixed)
        first = fixed.find("{")
        return tag.group(1) if tag is not None and tag.start() == first else None
    return fixed if named is None else None


def cursor_key(pipeline: str, sink: str, tag: str | None) -> str:
    """Return the key that holds how far a sink is.

    Args:
        pipeline: the pipeline's name.
        sink: the sink's id.
        tag: what keeps it in the slot of the streams; None outside clusters.
    """
    place = "" if tag is None else f"{{{tag}}}:"
    return f"_deltaforge:{place}{pipeline}:{sink}"
