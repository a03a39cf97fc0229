"""An InferencePool, its pods and InferenceObjectives, as a cluster's API server tells them.

    cluster = PoolOfPods(server, pool_object([8000]), [pool_pod("one", "10.0.0.1", {})])
    cluster.pods = []

The shapes are those of Gateway API inference extension v1 and of Kubernetes 1.33.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.kubernetes import Answer, ApiServer, Asked
from tests.support.kubernetes_objects import NAMESPACE, status

LABELS = {"app": "vllm", "tier": "gpu"}
OBJECTIVES = (
    f"/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/inferenceobjectives"
)
POOL = f"/apis/inference.networking.k8s.io/v1/namespaces/{NAMESPACE}/inferencepools/pool"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def pool_object(ports: Sequence[int], labels: Mapping[str, str] = LABELS) -> dict[str, Any]:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "pool", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": dict(labels)},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "pdgate-epp", "port": {"number": 9002}},
        },
    }


def pool_pod(
    name: str, address: str, labels: Mapping[str, str], *, ready: bool = True
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {**LABELS, **labels}},
        "spec": {"nodeName": "node-1", "containers": []},
        "status": {
            "phase": "Running",
            **({"podIP": address} if address else {}),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


class PoolOfPods:
    """
    Attributes:
        pool: None where there is no such object.
        objectives: Name -> priority, and the pool that it is of.
        selectors: Which pods were asked for.
    """

    def __init__(
        self, server: ApiServer, pool: dict[str, Any] | None, pods: list[dict[str, Any]]
    ) -> None:
        self.pool = pool
        self.pods = pods
        self.objectives: dict[str, tuple[int, str]] = {}
        self.selectors: set[str] = set()
        self._server = server
        server.answer = self._answer

    def _answer(self, asked: Asked) -> Answer | None:
        if self._server.token is not None:
            # Nobody here has it.
            return None
        match asked.path:
            case str(path) if path == POOL:
                return _said(self.pool)
            case str(path) if path == PODS:
                self.selectors.add(asked.query["labelSelector"])
                return _said({"kind": "PodList", "metadata": {}, "items": self.pods})
            case str(path) if path == OBJECTIVES:
                items = [
                    {
                        "metadata": {"name": name},
                        "spec": {"priority": priority, "poolRef": {"name": pool}},
                    }
                    for name, (priority, pool) in self.objectives.items()
                ]
                return _said({"kind": "InferenceObjectiveList", "metadata": {}, "items": items})
        return None


def _said(found: dict[str, Any] | None) -> Answer:
    if found is None:
        said = status(404, "NotFound", 'inferencepools "pool" not found')
        return Answer(404, json.dumps(said).encode())
    return Answer(200, json.dumps(found).encode())
