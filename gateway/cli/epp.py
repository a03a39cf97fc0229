"""`pdgate epp`: `pdgate serve` that also picks engines for a gateway made of Envoy.

The flags are those of `serve`, and the file is the same. What it answers by HTTP beside that is /health, /ready, /metrics and
/admin/..., and calls that are sent to it, which have the same scheduler as those that Envoy asks about.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from pdgate.gateway.cli.flags import with_flags
from pdgate.gateway.cli.serve import run
from pdgate.gateway.config.setting import CONNECTION

LISTEN = "epp_listen"
PORT = 9002
"""As pickers of the Gateway API inference extension have it (--grpc-port)."""


@with_flags
def epp(
    config: Annotated[
        Path | None, typer.Option(help="TOML file; flags go over it.", show_default=False)
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            help="InferencePool of this cluster whose pods are the engines, as name or namespace/name.",
            rich_help_panel=CONNECTION,
            show_default=False,
        ),
    ] = None,
    **flags: Any,
) -> None:
    """Pick engines for a gateway made of Envoy, by the Gateway API inference extension (needs the
    extra `epp`).

    It asks by gRPC at --epp-listen (0.0.0.0:9002, unless a file or the flag says otherwise).
    """
    if pool:
        namespace, _, name = pool.rpartition("/")
        said = [f"pool={name}", *([f"namespace={namespace}"] if namespace else [])]
        flags["directory"] = flags.get("directory") or "inference-pool"
        flags["directory_option"] = [*(flags.get("directory_option") or []), *said]
    if not flags.get(LISTEN) and not _said_in(config):
        flags[LISTEN] = f"0.0.0.0:{PORT}"
    run("epp", config, flags)


def _said_in(config: Path | None) -> bool:
    """Whether the file says where to listen. What is wrong with the file, who reads it whole says."""
    if config is None:
        return False
    import tomllib

    from pdgate.cluster import regular

    try:
        section = tomllib.loads(regular.read(config).decode()).get("epp")
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(section, dict) and bool(section.get("listen"))
