"""Transfer backends by name, ours and third-party ones alike.

A package adds one with an entry point, and nothing is imported until it is used:

    [project.entry-points."pdgate.transfers"]
    acme = "pdgate_acme:AcmeBackend"
"""

import inspect
from typing import Any

from pdgate.protocols import plugins
from pdgate.transfer.base import Backend
from pdgate.transfer.runtime.fleet import Identity


def load(name: str, *, identity: Identity | None = None, **options: Any) -> Backend:
    """`options` are the backend's own; `identity` is for one that takes it.

    Raises LookupError, TypeError, ValueError, OSError.
    """
    one = plugins.find(plugins.TRANSFERS, "transfer backend", name)
    make = one.load()
    if identity is not None and "identity" in inspect.signature(make).parameters:
        options["identity"] = identity
    backend = make(**options)
    if not isinstance(backend, Backend):
        raise TypeError(f"{one.value} is not a Backend")
    return backend
