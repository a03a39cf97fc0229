"""A directory that an InferencePool is: engines are the pods that it selects, at each of its ports.

    pdgate epp --pool vllm-qwen3                       in a pod
    directory = opened(pool="vllm-qwen3", url="http://127.0.0.1:8001", namespace="llm")     outside, by kubectl proxy

    spec.selector.matchLabels    which pods; of these the label pdgate.dev/role, or llm-d.ai/role, says what each does
    spec.targetPorts             an engine at each

A pool is small and read as a whole, every few seconds: a change counts by then, and a pod that ends sooner than that is
found by the gateway's own health checks. A pool that is not there, or selects nothing, is no outage: it has no engines, or
what it had stays, and either is said.

Source: kubernetes-sigs/gateway-api-inference-extension 84436a9, api/v1/inferencepool_types.go; llm-d/llm-d-inference-scheduler
520af47, pkg/epp/framework/plugins/scheduling/filter/bylabel/roles.go.
"""

import asyncio
import json
import os
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from pdgate.cluster import address
from pdgate.cluster.directory import Tell
from pdgate.cluster.kubernetes.access import KubernetesAccess, checked, in_pod
from pdgate.cluster.kubernetes.http import KubernetesHttp
from pdgate.cluster.kubernetes.slices import PREFIX, ROLE, UNREADY
from pdgate.cluster.kubernetes.wire import KubernetesError
from pdgate.cluster.member import DRAINING, FOLDER, READY
from pdgate.cluster.polled import Polled, Seen, Unseen
from pdgate.protocols.instance import Role

EVERY_SECONDS: Final = 2.0
POOLS: Final = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools/{}"
PODS: Final = "/api/v1/namespaces/{}/pods"
MOST_POOL_BYTES: Final = 256 << 10
MOST_POD_BYTES: Final = 32 << 20
"""Of all pods that are selected: some 3,000."""
ASIDE_BYTES: Final = 1 << 20
"""More is read in a thread."""
LLM_D_ROLE: Final = "llm-d.ai/role"
LLM_D_ROLES: Final = {
    "prefill": Role.PREFILL,
    "encode-prefill": Role.PREFILL,
    "decode": Role.DECODE,
    "both": Role.BOTH,
    "prefill-decode": Role.BOTH,
    "encode-prefill-decode": Role.BOTH,
    "encode": Role.ENCODE,
}


class _Labels(msgspec.Struct):
    matchLabels: dict[str, str] = {}


class _TargetPort(msgspec.Struct):
    number: int = 0


class _PoolSpec(msgspec.Struct):
    selector: _Labels = msgspec.field(default_factory=_Labels)
    targetPorts: list[_TargetPort] = []


class PoolObject(msgspec.Struct):
    """An InferencePool, as far as it is read."""

    spec: _PoolSpec = msgspec.field(default_factory=_PoolSpec)


class _PodMetadata(msgspec.Struct):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    deletionTimestamp: str | None = None


class _PodSpec(msgspec.Struct):
    nodeName: str = ""


class _PodCondition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _PodStatus(msgspec.Struct):
    podIP: str = ""
    conditions: list[_PodCondition] | None = None


class _Pod(msgspec.Struct):
    metadata: _PodMetadata
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _Pods(msgspec.Struct):
    items: list[_Pod] | None = None


_pool_in = msgspec.json.Decoder(PoolObject).decode
_pods_in = msgspec.json.Decoder(_Pods).decode


class InferencePool(Polled):
    """
    Attributes:
        access, name: Where it is.
    """

    def __init__(
        self,
        access: KubernetesAccess,
        name: str,
        protocol: str = "",
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """`protocol`: of pods whose labels name none. Raises ValueError."""
        super().__init__(every_seconds)
        if not name:
            raise ValueError("the pool has no name")
        self.access = access
        self.name = name
        self._protocol = protocol
        self._http: KubernetesHttp | None = None

    async def follow(self, tell: Tell) -> None:
        try:
            await super().follow(tell)
        finally:
            await self._hang_up()

    async def look(self) -> Seen:
        namespace = self.access.namespace
        try:
            if self._http is None:
                self._http = KubernetesHttp(self.access)
            at = POOLS.format(quote(namespace, safe=""), quote(self.name, safe=""))
            pool = _pool_in(await self._http.read(at, "", MOST_POOL_BYTES)).spec
            labels, ports = pool.selector.matchLabels, [port.number for port in pool.targetPorts]
            if not labels or not ports:
                raise Unseen(f"the InferencePool {self.name} selects no pods, or has no port")
            query = urlencode(
                {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}
            )
            said = await self._http.read(
                PODS.format(quote(namespace, safe="")), query, MOST_POD_BYTES
            )
            if len(said) > ASIDE_BYTES:
                found = await asyncio.to_thread(_pods_in, said)
            else:
                found = _pods_in(said)
        except KubernetesError as error:
            await self._hang_up()
            raise Unseen(f"InferencePool {namespace}/{self.name}: {error}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unseen(
                f"InferencePool {namespace}/{self.name}: what Kubernetes says of it cannot be read: {error}"
            ) from None
        return entries_of(found.items or (), ports, self._protocol)

    async def _hang_up(self) -> None:
        """The next look begins with files read anew."""
        http, self._http = self._http, None
        if http is not None:
            await http.__aexit__()


def entries_of(pods: "list[_Pod] | tuple[()]", ports: list[int], protocol: str) -> Seen:
    """Engines of these pods, as a store would have them."""
    entries: dict[str, bytes] = {}
    refused: dict[str, str] = {}
    for pod in pods:
        host, labels = pod.status.podIP, pod.metadata.labels or {}
        if not host:
            # It is not scheduled yet, or over.
            continue
        role = labels.get(ROLE)
        if role is None and LLM_D_ROLE in labels:
            role = LLM_D_ROLES.get(labels[LLM_D_ROLE])
            if role is None:
                refused[pod.metadata.name] = (
                    f"its label {LLM_D_ROLE} is {labels[LLM_D_ROLE]!r}, which is no role"
                )
                continue
        ready = any(
            one.type == "Ready" and one.status == "True" for one in pod.status.conditions or ()
        )
        state = READY if ready else UNREADY
        said = {
            "protocol": labels.get(f"{PREFIX}protocol", ""),
            "model": labels.get(f"{PREFIX}model", ""),
            "epoch": pod.metadata.uid,
            "host": pod.spec.nodeName,
            "state": DRAINING if pod.metadata.deletionTimestamp else state,
        }
        role = role or Role.PLAIN.value
        if role not in (Role.PLAIN, Role.ENCODE):
            said["protocol"] = said["protocol"] or protocol
        for port in ports:
            entries[f"{FOLDER}{role}/{host}/{port}"] = json.dumps(said).encode()
    return Seen(entries, refused)


def opened(
    *,
    pool: str,
    url: str = "",
    namespace: str = "",
    protocol: str = "",
    token_file: str = "",
    ca_file: str = "",
    every_seconds: float = EVERY_SECONDS,
) -> InferencePool:
    """Directory of a pool; without a URL, in the cluster whose pod this is, with the pod's service account.

    Raises ValueError.
    """
    if url:
        access = checked(KubernetesAccess(url, namespace, ROLE, token_file, ca_file))
    elif token_file or ca_file:
        raise ValueError("token_file and ca_file are of use with a url only: a pod has its own")
    else:
        access = in_pod(os.environ, ROLE, namespace)
    address.host(pool)
    return InferencePool(access, pool, protocol, every_seconds)
