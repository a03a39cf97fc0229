"""The toy proxy in vLLM's tests, which many fleets began with.

Source: vLLM 0.32.0, tests/v1/kv_connector/nixl_integration/toy_proxy_server.py, parse_args.
"""

from collections.abc import Sequence
from typing import Any, Final

from pdgate.gateway.cli.compat.translation import Flags, FlagTranslation, NotTaken

SIDES: Final = {"prefiller": ("prefill", 8100), "decoder": ("decode", 8200)}


def translated(args: Sequence[str]) -> FlagTranslation:
    """Raises NotTaken."""
    said, rest = _flags().read(args)
    found = FlagTranslation()
    # Where it listens by default.
    found.flag("--host", said.get("--host", "localhost"))
    found.flag("--port", said.get("--port", 8000))
    found.flag("--pdd-protocol", "vllm-nixl")
    for side, (ours, port) in SIDES.items():
        for url in _urls(said, side, port):
            found.flag(f"--{ours}", url)
    found.ours += rest
    return found


def _flags() -> Flags:
    flags = Flags("vllm-toy-proxy")
    flags.add_argument("--host")
    flags.add_argument("--port", type=int)
    for side in SIDES:
        flags.add_argument(f"--{side}-hosts", f"--{side}-host", nargs="+")
        flags.add_argument(f"--{side}-ports", f"--{side}-port", type=int, nargs="+")
    return flags


def _urls(said: dict[str, Any], side: str, port: int) -> list[str]:
    hosts = said.get(f"--{side}-hosts", ["localhost"])
    ports = said.get(f"--{side}-ports", [port])
    if len(hosts) != len(ports):
        raise NotTaken(f"there are {len(hosts)} --{side}-hosts and {len(ports)} --{side}-ports")
    return [f"http://{host}:{number}" for host, number in zip(hosts, ports, strict=True)]
