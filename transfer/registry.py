"""Finds transfer backends by name, ours and third-party ones alike.

A package adds one with an entry point, and nothing is imported until it is used:

    [project.entry-points."pdgate.transfers"]
    acme = "pdgate_acme:AcmeBackend"
"""

from typing import Any

from pdgate.protocols import plugins
from pdgate.transfer.base import Backend


def load(name: str, **options: Any) -> Backend:
    """`options` are the backend's own. Raises LookupError, TypeError."""
    one = plugins.find(plugins.TRANSFERS, "transfer backend", name)
    backend = one.load()(**options)
    if not isinstance(backend, Backend):
        raise TypeError(f"{one.value} is not a Backend")
    return backend
