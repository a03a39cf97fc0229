"""Answers of one engine about itself, and of a gateway about its fleet; asking changes nothing.

GET   /health /v1/models /version /metrics /kv_event_sources
GET   /distserve/engine_info       LMDeploy's
GET   /server_info                 vLLM's development mode, and SGLang
POST  /tokenize                    a text and a chat, the same ones for all engines
GET   <bootstrap>/query            Mooncake
GET   /admin/instances             of a gateway
"""

import time
from collections.abc import Mapping
from typing import Any, Final

import httpx2

from pdgate.operations.asking import BadAsk, Gateway, GatewayAway
from pdgate.operations.doctor import parsing
from pdgate.operations.doctor.seen import Gatewise, SeenBootstrap, SeenConnector, SeenEngine
from pdgate.protocols.dialects import lmdeploy, mooncake
from pdgate.protocols.instance import Instance, Role

TEXT: Final = "Does the KV arrive? 17 blöcke, 4 Seiten.\n\tЯ знаю: 三 + 4 = 7 🙂"
CHAT: Final = (
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": TEXT},
)
VLLM, SGLANG, OURS = "vllm", "sglang", "pdgate"
LMDEPLOY = "lmdeploy"
MOONCAKE = "vllm-mooncake"
ASKED_BY_QUERY = ("", "c", "d")
"""Generations of Mooncake whose bootstrap server has /query; empty where it was not said which."""

INSTANCES_PATH = "/admin/instances"


async def look(client: httpx2.AsyncClient, instance: Instance) -> SeenEngine:
    """Everything that goes wrong is part of what is seen."""
    asked = _Asked(client, instance.url)
    try:
        before = time.time()
        health = await client.get(f"{instance.url}/health")
        after = time.time()
        models = await client.get(f"{instance.url}/v1/models")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return SeenEngine(instance=instance, trouble=str(error) or type(error).__name__)
    cards, kind, created = parsing.cards(_json(models))
    page = await asked.page()
    version = (await asked.json("/version") or {}).get("version", "")
    seen: dict[str, Any] = {
        "instance": instance,
        "health": health.status_code,
        "models_status": models.status_code,
        "cards": cards,
        "kind": kind,
        "version": version if isinstance(version, str) else "",
        "block_tokens": page.block_tokens,
        "ranks": max(1, len(page.ranks)),
        "prefix_caching": page.prefix_caching,
        "kv_dtype": page.kv_dtype,
        "counters": page.counters,
        "has_nixl": page.has_nixl if page.any else None,
        # vLLM makes its cards anew for each answer.
        "started": created if kind == OURS else page.started,
        "skew_seconds": parsing.skew(health.headers.get("date"), (before, after)),
        "closes": health.headers.get("connection", "").lower() == "close",
    }
    if instance.protocol == LMDEPLOY:
        seen |= parsing.lmdeploy_info(await asked.text(lmdeploy.INFO))
    if kind in (VLLM, SGLANG):
        seen |= await _shown(asked, kind)
    if cards:
        model = instance.model if instance.model in cards else next(iter(cards))
        text = await asked.json("/tokenize", {"model": model, "prompt": TEXT})
        chat = await asked.json("/tokenize", {"model": model, "messages": CHAT})
        seen |= {"text_tokens": parsing.tokens(text), "chat_tokens": parsing.tokens(chat)}
        seen["events"] = parsing.events(await asked.json("/kv_event_sources"), instance.host)
    seen["bootstrap"] = await _bootstrap(client, instance, kind)
    return SeenEngine(**seen)


async def page_of(client: httpx2.AsyncClient, instance: Instance) -> parsing.SeenMetrics:
    """Empty if it has none."""
    return await _Asked(client, instance.url).page()


class _Asked:
    """Answers that are good to have: None where there is none."""

    def __init__(self, client: httpx2.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    async def text(self, path: str) -> bytes:
        """Empty if there is none."""
        try:
            answer = await self._client.get(self._url + path)
        except httpx2.HTTPError:
            return b""
        return answer.content if answer.status_code == 200 else b""

    async def json(self, path: str, body: Any = None) -> Any:
        try:
            if body is None:
                answer = await self._client.get(self._url + path)
            else:
                answer = await self._client.post(self._url + path, json=body)
        except httpx2.HTTPError:
            return None
        return _json(answer)

    async def page(self) -> parsing.SeenMetrics:
        try:
            answer = await self._client.get(f"{self._url}/metrics")
            return parsing.page(answer.text) if answer.status_code == 200 else parsing.SeenMetrics()
        except (httpx2.HTTPError, ValueError):
            return parsing.SeenMetrics()


def _json(answer: httpx2.Response) -> Any:
    if answer.status_code != 200:
        return None
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


async def _shown(asked: _Asked, kind: str) -> dict[str, Any]:
    """What an engine shows of its configuration."""
    if kind == VLLM:
        info = await asked.json("/server_info?config_format=json")
        if info is None:
            return {}
        return {"connector": parsing.vllm_connector(info), "shows_all": True}
    info = await asked.json("/server_info") or await asked.json("/get_server_info")
    if info is None:
        return {}
    told = parsing.sglang_info(info)
    return {
        "version": told.version,
        "block_tokens": told.block_tokens,
        "kv_dtype": told.kv_dtype,
        "prefix_caching": told.prefix_caching,
        "connector": SeenConnector(role=told.role),
    }


async def _bootstrap(
    client: httpx2.AsyncClient, instance: Instance, kind: str
) -> SeenBootstrap | None:
    """None where none is needed."""
    if instance.protocol != MOONCAKE or not instance.role.serves(Role.PREFILL):
        return None
    if instance.generation not in ASKED_BY_QUERY:
        return None
    url = mooncake.bootstrap_url(instance)
    try:
        answer = await client.get(f"{url}/query")
    except httpx2.HTTPError as error:
        # Generation a has none, and is what only an old vLLM speaks.
        wanted = instance.kv or instance.generation or kind in (VLLM, OURS)
        why = str(error) or type(error).__name__
        return SeenBootstrap(f"{url}: {why}") if wanted else None
    if answer.status_code != 200:
        # Generation b has one without /query.
        asked_for = instance.generation or kind in (VLLM, OURS)
        return SeenBootstrap(f"{url}/query answered {answer.status_code}") if asked_for else None
    found = parsing.bootstrap(_json(answer))
    return SeenBootstrap(f"{url}: {found.trouble}") if found.trouble else found


def fleet_of(gateway: Gateway) -> tuple[list[Instance], list[Gatewise]]:
    """The fleet as a running gateway knows it. Raises BadAsk, GatewayAway."""
    told = gateway.get(INSTANCES_PATH)
    if told.status == 404:
        raise BadAsk(
            f"{gateway.url} has no {INSTANCES_PATH}: start it with --admin-token-file, and if it has an "
            "--admin-listen, ask that address"
        )
    if told.status != 200 or not isinstance(told.body, list):
        raise GatewayAway(
            f"{gateway.url}{INSTANCES_PATH} answered {told.status} {told.message}".rstrip()
        )
    try:
        return [_instance(one) for one in told.body], [_seen(one) for one in told.body]
    except (KeyError, TypeError, ValueError) as error:
        raise GatewayAway(
            f"{gateway.url}{INSTANCES_PATH} does not tell of instances: {error!r}"
        ) from None


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
