"""/workers: engines that come and go by request, as SGLang's Model Gateway has it.

    POST    /workers         {"url": "http://10.0.0.1:30000", "worker_type": "prefill", "bootstrap_port": 8998}
    GET     /workers         {"workers": [...], "total": n, "stats": {...}}: all engines, from wherever they are known
    GET     /workers/{id}    one of them
    DELETE  /workers/{id}    no more calls for it; those that run there go on; only what came by POST

What is added is shared as drained instances are (gateway/sync/shared_setting.py): all processes of the gateway,
and replicas with a Redis, have it. `priority`, `cost` and `labels` are kept and shown, and weigh nothing here.
`runtime` (or `runtime_type`) says what a prefill or decode engine speaks ("sglang", "vllm"), unless `protocol`, which is ours, does.

Source: sgl-model-gateway 0.3, src/protocols/worker_spec.rs (WorkerConfigRequest, WorkerInfo, WorkerListResponse),
src/server.rs (create_worker, list_workers_rest, get_worker, delete_worker: 202 for what is done later).
"""

import json
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, ValidationError

from pdgate.cluster.address import joined
from pdgate.cluster.bounded import TooLong, whole
from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.config import ConfigError, Settings
from pdgate.gateway.config.checks import check_instance
from pdgate.gateway.config.instances import InstanceEntry, base_url, records
from pdgate.gateway.config.setting import Section
from pdgate.gateway.probe import Prober
from pdgate.gateway.sync.shared_setting import SharedSetting
from pdgate.protocols.errors import BadRequest, NotFound
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.neighbours import calls_of_this_gateway

PATH: Final = "/workers"
MOST_WORKERS: Final = 1024
MAX_BODY_BYTES: Final = 64 << 10
DEFAULT_PRIORITY: Final = 50

_ROLES: Final = {"regular": Role.PLAIN, "prefill": Role.PREFILL, "decode": Role.DECODE}
_TYPES: Final = {role: name for name, role in _ROLES.items()}
_SPOKEN: Final = {"sglang": "sglang", "vllm": "vllm-nixl"}
"""Runtime -> protocol."""

Label = Annotated[str, Field(max_length=256)]
Word = Annotated[str, Field(max_length=256)]


class WorkerEntry(Section):
    """A worker as it was added; fields of SGLang's gateway that are not here are for what it does itself."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    url: Annotated[str, Field(max_length=2048), AfterValidator(base_url)]
    worker_type: Literal["regular", "prefill", "decode"] = "regular"
    model_id: Word = ""
    bootstrap_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    runtime: Word = Field("", validation_alias=AliasChoices("runtime", "runtime_type"))
    protocol: Word = ""
    generation: Word = ""
    priority: Annotated[int, Field(ge=0, le=2**32 - 1)] = DEFAULT_PRIORITY
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    labels: Annotated[dict[Label, Label], Field(max_length=64)] = Field(default_factory=dict)

    @property
    def id(self) -> str:
        """The same wherever and whenever it is added."""
        named = f"{self.worker_type} {self.url}".encode()
        return f"worker-{blake2b(named, digest_size=6).hexdigest()}"


class WorkerEntries(Section):
    """All that were added."""

    workers: tuple[WorkerEntry, ...] = ()


class Registered:
    """Workers that were added, as instances of this process."""

    def __init__(
        self, endpoints: Endpoints, prober: Prober, settings: Callable[[], Settings]
    ) -> None:
        """`settings`: those in force."""
        self.endpoints = endpoints
        self.settings = settings
        self._prober = prober
        self._here: dict[str, Instance] = {}

    def take(self, said: WorkerEntries) -> None:
        """These, and only these, are here."""
        wanted = {entry.id: entry for entry in said.workers}
        for name in self._here.keys() - wanted.keys():
            del self._here[name]
            self.endpoints.remove(name)
            self._prober.forget(name)
        for name, entry in wanted.items():
            if name not in self._here:
                instance = self._here[name] = record_of(self.settings(), entry)
                self.endpoints.put(instance)
                self._prober.add(instance)


def record_of(settings: Settings, entry: WorkerEntry) -> Instance:
    role, kv = _ROLES[entry.worker_type], ""
    protocol = entry.protocol or (_SPOKEN.get(entry.runtime, "") if role.hands_over else "")
    if entry.bootstrap_port is not None:
        host = urlsplit(entry.url).hostname or ""
        kv = joined(host, entry.bootstrap_port)
    written = InstanceEntry(
        role=role,
        url=entry.url,
        kv=kv,
        protocol=protocol,
        generation=entry.generation,
        model=entry.model_id,
        id=entry.id,
    )
    return records([written], settings.protocol_of, settings.generation)[0]


def routes(registered: Registered, setting: SharedSetting[WorkerEntries], token: str) -> APIRouter:
    """`token` is not empty."""
    router = APIRouter(dependencies=[Depends(knows(token))], tags=["control"])
    endpoints = registered.endpoints

    @router.post(PATH)
    async def add(request: Request) -> JSONResponse:
        """Adds an engine; it gets calls once it was found well."""
        entry = _entry(await _body(request))
        _check(registered, entry)

        def also(before: WorkerEntries) -> WorkerEntries:
            others = tuple(one for one in before.workers if one.id != entry.id)
            if len(others) >= MOST_WORKERS:
                raise BadRequest(f"there are {MOST_WORKERS} workers already")
            return WorkerEntries(workers=(*others, entry))

        await setting.change(also)
        where = f"{PATH}/{entry.id}"
        said = {
            "status": "accepted",
            "worker_id": entry.id,
            "url": entry.url,
            "location": where,
            "message": "it gets calls once it was found well",
        }
        return JSONResponse(said, 202, {"location": where})

    @router.get(PATH)
    async def all_of_them() -> dict[str, Any]:
        """All engines, from wherever they are known."""
        entries = _by_id(setting)
        return _listed([_shown(one, entries.get(one.instance.id)) for one in endpoints])

    @router.get(PATH + "/{worker_id:path}")
    async def one_of_them(worker_id: str) -> dict[str, Any]:
        """One of them."""
        return _shown(_found(endpoints, worker_id), _by_id(setting).get(worker_id))

    @router.delete(PATH + "/{worker_id:path}")
    async def remove(worker_id: str) -> JSONResponse:
        """No more calls for an engine that was added here; those that run there go on."""
        if worker_id not in _by_id(setting):
            endpoint = _found(endpoints, worker_id)
            raise BadRequest(
                f"{endpoint.instance.id!r} is configured, or of a directory, and leaves as it came; "
                f"POST /admin/instances/{endpoint.instance.id}/drain keeps calls from it"
            )
        await setting.change(
            lambda before: WorkerEntries(
                workers=tuple(one for one in before.workers if one.id != worker_id)
            ),
        )
        said = {"status": "accepted", "worker_id": worker_id, "message": "it gets no more calls"}
        return JSONResponse(said, 202)

    return router


async def _body(request: Request) -> bytes:
    try:
        return await whole(request.stream(), MAX_BODY_BYTES)
    except TooLong:
        raise BadRequest("a worker is described in fewer words") from None


def _entry(body: bytes) -> WorkerEntry:
    """Raises BadRequest."""
    try:
        said = json.loads(body)
        if not isinstance(said, dict):
            raise BadRequest("the request body must be a JSON object")
        if said.get("api_key"):
            raise BadRequest(
                "keys of engines are not taken by request: engine_key_file has that of all of them",
                param="api_key",
            )
        given = {name: value for name, value in said.items() if value is not None}
        models = given.get("models")
        if "model_id" not in given and isinstance(models, list) and len(models) == 1:
            given["model_id"] = models[0]["id"]
        return WorkerEntry.model_validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise BadRequest(f"{name!r}: {first['msg']}", param=name[:200]) from None
    except (LookupError, TypeError):
        raise BadRequest("'models': objects with an 'id'", param="models") from None
    except (ValueError, RecursionError):
        raise BadRequest("the request body is not valid JSON") from None


def _check(registered: Registered, entry: WorkerEntry) -> None:
    """Raises BadRequest for one that cannot be used, or is known from elsewhere."""
    settings = registered.settings()
    try:
        wanted = record_of(settings, entry)
        check_instance(settings, wanted)
    except (ConfigError, ValueError) as error:
        raise BadRequest(str(error)) from None
    for endpoint in registered.endpoints:
        one = endpoint.instance
        if one.id != wanted.id and (one.role, one.url) == (wanted.role, wanted.url):
            raise BadRequest(f"that engine is known already, as {one.id!r}", param="url")


def _found(endpoints: Endpoints, worker_id: str) -> Endpoint:
    endpoint = endpoints.get(worker_id)
    if endpoint is None:
        raise NotFound(f"there is no worker {worker_id!r}")
    return endpoint


def _by_id(setting: SharedSetting[WorkerEntries]) -> dict[str, WorkerEntry]:
    return {entry.id: entry for entry in setting.section.workers}


def _shown(endpoint: Endpoint, entry: WorkerEntry | None) -> dict[str, Any]:
    """As WorkerInfo has it; `state` and `protocol` are ours."""
    instance = endpoint.instance
    port = urlsplit(f"//{instance.kv}").port if instance.kv else None
    models = sorted(endpoint.models)
    shown: dict[str, Any] = {
        "id": instance.id,
        "url": instance.url,
        "model_id": instance.model or (models[0] if models else "unknown"),
        "priority": DEFAULT_PRIORITY if entry is None else entry.priority,
        "cost": 1.0 if entry is None else entry.cost,
        "worker_type": _TYPES.get(instance.role, instance.role.value),
        "is_healthy": endpoint.fit,
        "load": calls_of_this_gateway(endpoint),
        "connection_mode": "http",
        "metadata": {} if entry is None else entry.labels,
        "state": endpoint.state,
        "protocol": instance.protocol,
    }
    return shown | ({} if port is None else {"bootstrap_port": port})


def _listed(workers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def of(kind: str) -> int:
        return sum(one["worker_type"] == kind for one in workers)

    return {
        "workers": workers,
        "total": len(workers),
        "stats": {
            "total_workers": len(workers),
            "healthy_workers": sum(one["is_healthy"] for one in workers),
            "total_models": len({one["model_id"] for one in workers}),
            "total_load": sum(one["load"] for one in workers),
            "by_type": {kind: of(kind) for kind in _ROLES},
        },
    }
