"""Extras: how packages that pdgate can do without are installed; the sentence for a missing one.

pdgate is not on a package index yet, so what works is a checkout, and the image, which has most of them.

Source: pyproject.toml, [project.optional-dependencies]; deploy/docker/Dockerfile.
"""

from typing import Final

IN_IMAGE: Final = frozenset(
    {"demo", "dns", "engine", "epp", "jwt", "kv-events", "otel", "redis", "storage"}
)
"""Extras that the image of pdgate has."""


def install(extra: str) -> str:
    """What to do, as a part of a sentence."""
    said = f"pip install '.[{extra}]' in a checkout of pdgate"
    return f"{said}, or take its image, which has it" if extra in IN_IMAGE else said
