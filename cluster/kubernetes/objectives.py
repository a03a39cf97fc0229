"""InferenceObjectives of a pool: how urgent the calls are that name one of them.

    kind: InferenceObjective      metadata.name: chat      spec.priority: 2      spec.poolRef.name: vllm-qwen3

Source: llm-d/llm-d-inference-scheduler 520af47, apix/v1alpha2/inferenceobjective_types.go: higher is more urgent, none is 0, and
what is below 0 gives way when engines are busy.
"""

import asyncio
import logging
from typing import Final
from urllib.parse import quote

import msgspec

from pdgate.cluster.kubernetes.access import KubernetesAccess
from pdgate.cluster.kubernetes.http import KubernetesHttp
from pdgate.cluster.kubernetes.wire import KubernetesError

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 5.0
OBJECTIVES: Final = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{}/inferenceobjectives"
MOST_BYTES: Final = 1 << 20
MOST_OBJECTIVES: Final = 4096


class _ObjectiveMetadata(msgspec.Struct):
    name: str = ""


class _PoolReference(msgspec.Struct):
    name: str = ""


class _ObjectiveSpec(msgspec.Struct):
    priority: int | None = None
    poolRef: _PoolReference = msgspec.field(default_factory=_PoolReference)


class _Objective(msgspec.Struct):
    metadata: _ObjectiveMetadata = msgspec.field(default_factory=_ObjectiveMetadata)
    spec: _ObjectiveSpec = msgspec.field(default_factory=_ObjectiveSpec)


class _Objectives(msgspec.Struct):
    items: list[_Objective] | None = None


_read = msgspec.json.Decoder(_Objectives).decode


def priorities_in(said: bytes, pool: str) -> dict[str, int]:
    """Name -> priority, of those of the pool. Raises KubernetesError."""
    try:
        found = _read(said).items or []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KubernetesError(f"the InferenceObjectives cannot be read: {error}") from None
    return {
        one.metadata.name: one.spec.priority or 0
        for one in found[:MOST_OBJECTIVES]
        if one.spec.poolRef.name == pool
    }


class InferenceObjectives:
    """What they are now, as far as it is known; while the cluster does not answer, what they were."""

    def __init__(
        self, access: KubernetesAccess, pool: str, every_seconds: float = EVERY_SECONDS
    ) -> None:
        self._access = access
        self._pool = pool
        self._every_seconds = every_seconds
        self._priorities: dict[str, int] = {}

    def priority_of(self, name: str) -> int | None:
        return self._priorities.get(name)

    async def run(self) -> None:
        failed = False
        while True:
            try:
                async with KubernetesHttp(self._access) as http:
                    while True:
                        await self._look(http)
                        failed = False
                        await asyncio.sleep(self._every_seconds)
            except KubernetesError as error:
                if not failed:
                    log.warning("priorities of calls stay as they are: %s", error)
                failed = True
            await asyncio.sleep(self._every_seconds)

    async def _look(self, http: KubernetesHttp) -> None:
        path = OBJECTIVES.format(quote(self._access.namespace, safe=""))
        self._priorities = priorities_in(await http.read(path, "", MOST_BYTES), self._pool)
