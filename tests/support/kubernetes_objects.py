"""Objects of Kubernetes' API as a cluster writes them, and what a watch tells of them.

The shapes are those of Kubernetes 1.33: what a server wrote in the reports that its issues and
documentation show ("Kubernetes API Concepts"; staging/src/k8s.io/endpointslice/utils.go for
what the controller writes); tests/deploy/test_kubernetes.py holds the slices against its schema.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
NAMESPACE = "llm"


def pod(address: str, uid: str = "", **more: Any) -> Json:
    """An endpoint that is ready, as the controller writes it."""
    endpoint: Json = {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": "node-1",
        "zone": "east-1a",
    }
    if uid:
        name = f"engine-{uid}"
        endpoint["targetRef"] = {"kind": "Pod", "namespace": NAMESPACE, "name": name, "uid": uid}
    return endpoint | more


def endpoint_slice(
    name: str,
    labels: Mapping[str, str],
    endpoints: Sequence[Json] | None,
    ports: Mapping[str, int] | None = None,
    family: str = "IPv4",
) -> Json:
    """As the controller writes it for a Service, but for what the server adds."""
    service = name.rpartition("-")[0] or name
    reserved = {
        "kubernetes.io/service-name": service,
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    owner = {
        "apiVersion": "v1", "kind": "Service", "name": service, "uid": f"service-{service}",
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    return {
        "metadata": {
            "name": name,
            "generateName": f"{service}-",
            "namespace": NAMESPACE,
            "labels": {**labels, **reserved},
            "annotations": {
                "endpoints.kubernetes.io/last-change-trigger-time": "2026-11-20T09:00:00Z"
            },
            "ownerReferences": [owner],
        },
        "addressType": family,
        # Both are null for a Service without pods.
        "endpoints": endpoints,
        "ports": [
            {"name": each, "protocol": "TCP", "port": number}
            for each, number in ({"http": 8000} if ports is None else ports).items()
        ]
        or None,
    }


def status(code: int, reason: str, message: str) -> Json:
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """What a slice was and is; None where there was or is none."""

    version: int
    before: Json | None
    after: Json | None


def event_line(selector: str, event: Event) -> bytes | None:
    """What one who asked for the selector is told."""
    before = event.before if event.before and matches(selector, event.before) else None
    after = event.after if event.after and matches(selector, event.after) else None
    if after is not None:
        kind, said = "MODIFIED" if before else "ADDED", after
    elif before is not None:
        metadata = {**before["metadata"], "resourceVersion": str(event.version)}
        kind, said = "DELETED", {**before, "metadata": metadata}
    else:
        return None
    types = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1"}
    return json.dumps({"type": kind, "object": {**types, **said}}).encode() + b"\n"


def matches(selector: str, said: Json) -> bool:
    """Terms between commas: a label, or label=value."""
    labels = said["metadata"].get("labels", {})
    for term in filter(None, selector.split(",")):
        label, equals, value = term.partition("=")
        if label not in labels or (equals and labels[label] != value):
            return False
    return True
