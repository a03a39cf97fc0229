"""The fleet as a running gateway knows it, from GET /admin/instances."""

from collections.abc import Mapping
from typing import Any

from pdgate.operations.asking import BadAsk, Gateway, GatewayAway
from pdgate.operations.doctor.seen import Gatewise
from pdgate.protocols.instance import Instance, Role

PATH = "/admin/instances"


def fleet_of(gateway: Gateway) -> tuple[list[Instance], list[Gatewise]]:
    """Raises BadAsk, GatewayAway."""
    told = gateway.get(PATH)
    if told.status == 404:
        raise BadAsk(
            f"{gateway.url} has no {PATH}: start it with --admin-token-file, and if it has an "
            "--admin-listen, ask that address"
        )
    if told.status != 200 or not isinstance(told.body, list):
        raise GatewayAway(f"{gateway.url}{PATH} answered {told.status} {told.message}".rstrip())
    try:
        return [_instance(one) for one in told.body], [_seen(one) for one in told.body]
    except (KeyError, TypeError, ValueError) as error:
        raise GatewayAway(f"{gateway.url}{PATH} does not tell of instances: {error!r}") from None


def _instance(told: Mapping[str, Any]) -> Instance:
    return Instance(
        id=told["id"],
        url=told["url"],
        role=Role(told["role"]),
        protocol=told["protocol"],
        generation=told.get("generation", ""),
        kv=told.get("kv_address", ""),
    )


def _seen(told: Mapping[str, Any]) -> Gatewise:
    kv = told.get("kv")
    said: Mapping[str, Any] = kv if isinstance(kv, dict) else {}
    return Gatewise(told["id"], told["state"], said.get("cause") or "", said.get("hint") or "")
