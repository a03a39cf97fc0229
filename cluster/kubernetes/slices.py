"""Engines in an EndpointSlice, as pure functions.

    Service   labels: pdgate.dev/role: decode, pdgate.dev/protocol: vllm-nixl
       | Kubernetes copies a Service's labels to its slices, and finds the pods
    EndpointSlice   labels, ports: http 8000, endpoints: 10.0.0.2 ready, 10.0.0.3 terminating
       |
    Member   /workers/decode/10.0.0.2/8000

    pdgate.dev/role         prefill, decode, both or plain
               protocol     as a configured instance's; the gateway's default where missing
               generation   the same
               model        where a label can hold it, which "org/name" cannot; else it is asked
               port         the name of the API's port; else http or https, else the only one
               kv-port      name or number of the KV side's port; else kv, if there is one
               tp, block-tokens, dp-size, rack, version   as in any directory (cluster/member.py)

The pod's uid is the epoch, its node and zone are the place. A pod that is not ready, or terminates, is
listed with a state that gets no calls, so that an outage later does not leave it in use.

Source: Kubernetes 1.33, staging/src/k8s.io/api/discovery/v1/types.go (a missing `ready` means
yes, a missing `terminating` no); staging/src/k8s.io/endpointslice/utils.go, podToEndpoint and
setEndpointSliceLabels. A Service without pods has a slice whose lists are null.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdgate.cluster import address
from pdgate.cluster.member import DRAINING, FOLDER, READY, BadMember, Member
from pdgate.cluster.member import read as read_member

Json = Mapping[str, Any]

PREFIX: Final = "pdgate.dev/"
ROLE: Final = f"{PREFIX}role"
UNREADY: Final = "unready"
COUNTS: Final = {
    "tp": "tp",
    "block-tokens": "block_tokens",
    "dp-size": "dp_size",
    "version": "version",
}
TEXTS: Final = ("protocol", "generation", "model", "pair", "rack")
API_PORTS: Final = ("http", "https")
KV_PORT: Final = "kv"
LONGEST_NUMBER: Final = 9
NAMELESS: Final = "/"
MOST_ENDPOINTS: Final = 1000
"""Of a slice. Source: Kubernetes 1.33, staging/src/k8s.io/api/discovery/v1/types.go, EndpointSlice.Endpoints."""


@dataclass(frozen=True, slots=True)
class SliceEndpoint:
    """
    Attributes:
        pod: Its uid; empty if the slice does not say whose address this is.
        family: IPv4, IPv6 or FQDN.
    """

    member: Member
    pod: str = ""
    family: str = ""


@dataclass(frozen=True, slots=True)
class Slice:
    """
    Attributes:
        name: namespace/name.
        refused: Which slice, or address in it -> why it cannot be used.
    """

    name: str
    endpoints: tuple[SliceEndpoint, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


def read(said: Json) -> Slice:
    """Read a slice. What cannot be used is refused by name, and harms no other."""
    name = name_of(said)
    if name == NAMELESS:
        return Slice(name, refused={name: "it has no name"})
    try:
        labels = _object(_object(said, "metadata"), "labels")
        common = _common(labels)
        ports = [port for port in _objects(said, "ports") if port.get("protocol") in (None, "TCP")]
        endpoints = _objects(said, "endpoints")
        if not endpoints:
            return Slice(name)
        if len(endpoints) > MOST_ENDPOINTS:
            raise BadMember(f"it has more than {MOST_ENDPOINTS} endpoints")
        api = _api_port(ports, labels)
        kv = _kv_port(ports, labels)
    except BadMember as error:
        return Slice(name, refused={name: str(error)})
    scheme = "https" if "https" in (api.get("appProtocol"), api.get("name")) else "http"
    found, refused = [], {}
    for index, endpoint in enumerate(endpoints):
        host = ""
        try:
            host = _host(endpoint)
            here = {**common, "scheme": scheme, **_own(endpoint)}
            if kv:
                here["kv"] = f"{_bracketed(host)}:{kv}"
            key = f"{FOLDER}{labels.get(ROLE, '')}/{host}/{api['port']}"
            member = read_member(key, json.dumps(here).encode())
            found.append(SliceEndpoint(member, member.epoch, str(said.get("addressType"))))
        except BadMember as error:
            refused[f"{name} {host or f'endpoint {index}'}"] = str(error)
    return Slice(name, tuple(found), refused)


def name_of(said: Json) -> str:
    """namespace/name; what is missing is empty."""
    metadata = said.get("metadata")
    if not isinstance(metadata, dict):
        return NAMELESS
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def _common(labels: Json) -> dict[str, Any]:
    """What the labels say of every engine in the slice."""
    common: dict[str, Any] = {name: labels.get(PREFIX + name, "") for name in TEXTS}
    for label, name in COUNTS.items():
        text = labels.get(PREFIX + label)
        if text is not None:
            # What is no number is left as it is, for `read_member` to refuse by its name.
            common[name] = int(text) if _is_number(str(text)) else text
    return common


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER


def _own(endpoint: Json) -> dict[str, Any]:
    """What the endpoint says of itself."""
    conditions = _object(endpoint, "conditions")
    state = READY
    if conditions.get("ready") is False:
        state = UNREADY
    # Said even of a ready one, if its Service publishes addresses that are not ready.
    if conditions.get("terminating") is True:
        state = DRAINING
    own = {
        "epoch": _object(endpoint, "targetRef").get("uid"),
        "host": endpoint.get("nodeName"),
        "zone": endpoint.get("zone"),
    }
    return {"state": state, **{name: value for name, value in own.items() if value is not None}}


def _host(endpoint: Json) -> str:
    addresses = endpoint.get("addresses")
    # Several are the same engine by other names, and readers are to take the first.
    if not isinstance(addresses, list) or not addresses or not isinstance(addresses[0], str):
        raise BadMember("it has no address")
    return addresses[0]


def _api_port(ports: list[Json], labels: Json) -> Json:
    wanted = labels.get(f"{PREFIX}port")
    names = API_PORTS if wanted is None else (wanted,)
    chosen = [port for name in names for port in ports if port.get("name") == name]
    if not chosen and wanted is None:
        others = [port for port in ports if port.get("name") != KV_PORT]
        chosen = others if len(others) == 1 else []
    if not chosen or chosen[0].get("port") is None:
        raise BadMember(f"none of its TCP ports is called {' or '.join(map(str, names))}")
    return chosen[0]


def _kv_port(ports: list[Json], labels: Json) -> str:
    """Empty if it has none."""
    wanted = labels.get(f"{PREFIX}kv-port")
    if wanted is not None and str(wanted).isdecimal():
        return _decimal(wanted)
    name = KV_PORT if wanted is None else wanted
    for port in ports:
        if port.get("name") == name:
            return _decimal(port.get("port"))
    if wanted is not None:
        raise BadMember(f"none of its TCP ports is called {wanted}")
    return ""


def _decimal(port: Any) -> str:
    try:
        return str(address.port(str(port)))
    except ValueError as error:
        raise BadMember(str(error)) from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _object(said: Json, name: str) -> Json:
    """Empty where it is missing or null. Raises BadMember."""
    found = said.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadMember(f"{name!r} is no JSON object")
    return found


def _objects(said: Json, name: str) -> list[Json]:
    """Empty where it is missing or null. Raises BadMember."""
    found = said.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise BadMember(f"{name!r} is no list of JSON objects")
    return found
