"""Services of a cluster, as members: what Kubernetes writes of an engine that a test has in mind."""

from typing import Any

from pdgate.cluster.kubernetes.access import KubernetesAccess
from pdgate.cluster.kubernetes.follow import Timing
from pdgate.cluster.member import DRAINING, Member
from tests.support.kubernetes import ApiServer
from tests.support.kubernetes_objects import endpoint_slice, pod

QUICK = Timing(beat_seconds=0.2, request_seconds=10.0, first_wait_seconds=0.01)


def access(server: ApiServer, **more: Any) -> KubernetesAccess:
    return KubernetesAccess(server.url, server.namespace, **more)


def labels(member: Member) -> dict[str, str]:
    said = {
        "role": str(member.role),
        "protocol": member.protocol,
        "model": member.model,
        "block-tokens": str(member.block_tokens),
    }
    return {f"pdgate.dev/{name}": value for name, value in said.items() if value not in ("", "0")}


def service(member: Member, *, name: str = "", **endpoint: Any) -> dict[str, Any]:
    """A slice with this engine alone."""
    ports = {"http": member.port}
    if member.kv:
        ports["kv"] = int(member.kv.rpartition(":")[2])
    place = {
        name: value
        for name, value in (("nodeName", member.place.host), ("zone", member.place.zone))
        if value
    }
    conditions = {
        "ready": member.takes_calls,
        "serving": True,
        "terminating": member.state == DRAINING,
    }
    alone = {"conditions": conditions, "nodeName": None, "zone": None} | place | endpoint
    each = pod(member.host, member.epoch, **alone)
    return endpoint_slice(name or slice_name(member.key), labels(member), [each], ports)


def slice_name(key: str) -> str:
    return key.strip("/").replace("/", "-").replace(".", "-")
