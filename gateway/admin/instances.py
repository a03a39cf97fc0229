"""/admin/instances: which engines get calls, seen and changed while the gateway runs.

    GET   /admin/instances                  all of them, as this process sees them
    POST  /admin/instances/{id}/drain       no more calls; those that run there go on
    POST  /admin/instances/{id}/undrain     calls again, as soon as it is well

What is drained is shared as thresholds are (gateway/sync/shared_setting.py), so all processes follow,
and one that starts later too. It stays said while an engine is away, and for an engine that comes back as it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends

from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.config.setting import Section
from pdgate.gateway.sync.shared_setting import SharedSetting
from pdgate.protocols.errors import NotFound
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.neighbours import calls_of_this_gateway

if TYPE_CHECKING:
    # Not every gateway has the console.
    from pdgate.gateway.console.cards import More

PATH = "/admin/instances"


class Drained(Section):
    """Ids of instances that are to get no more calls."""

    instances: tuple[str, ...] = ()

    def without(self, instance_id: str) -> "Drained":
        return Drained(instances=tuple(one for one in self.instances if one != instance_id))

    def also(self, instance_id: str) -> "Drained":
        return Drained(instances=(*self.without(instance_id).instances, instance_id))


def nothing_more(_: Endpoint) -> Mapping[str, Any]:
    return {}


def routes(
    instances: Endpoints,
    drained: SharedSetting[Drained],
    token: str,
    more: "More" = nothing_more,
    let_in: Callable[[str], Awaitable[None]] | None = None,
) -> APIRouter:
    """`token` is not empty; `more` adds what else is known of an instance; `let_in` gets the id of what
    is undrained, where a weight update may have left it out."""
    router = APIRouter(dependencies=[Depends(knows(token))])

    @router.get(PATH)
    async def all_of_them() -> list[dict[str, Any]]:
        """What this process knows of each instance."""
        return [{**_told(endpoint), **more(endpoint)} for endpoint in instances]

    @router.post(PATH + "/{instance_id:path}/drain")
    async def drain(instance_id: str) -> dict[str, Any]:
        """Sends it no more calls."""
        _found(instances, instance_id)
        await drained.change(lambda before: before.also(instance_id))
        return _told(_found(instances, instance_id))

    @router.post(PATH + "/{instance_id:path}/undrain")
    async def undrain(instance_id: str) -> dict[str, Any]:
        """Sends it calls again."""
        _found(instances, instance_id)
        if let_in is not None:
            await let_in(instance_id)
        await drained.change(lambda before: before.without(instance_id))
        return _told(_found(instances, instance_id))

    return router


def _found(instances: Endpoints, instance_id: str) -> Endpoint:
    endpoint = instances.get(instance_id)
    if endpoint is None:
        raise NotFound(f"there is no instance {instance_id!r}")
    return endpoint


def _told(endpoint: Endpoint) -> dict[str, Any]:
    instance = endpoint.instance
    return {
        "id": instance.id,
        "role": instance.role.value,
        "protocol": instance.protocol,
        "generation": instance.generation,
        "kv_address": instance.kv,
        "url": instance.url,
        "state": endpoint.state,
        "models": sorted(endpoint.models),
        "calls": calls_of_this_gateway(endpoint),
        "ejections": dict(endpoint.ejections),
    }
