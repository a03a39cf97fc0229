"""Sources of KV events: where an engine publishes them.

    asked     GET /kv_event_sources -> {"0": {"endpoint": "tcp://*:5557", ...}} by rank
    template  tcp://{host}:5557, the port of rank 0; each further rank has the next one

What an engine listens on may be a wildcard, which to us is the host of its URL. Engines that publish
for members of their fleet alone say so when they are asked, with what their sockets prove (cluster/kv_events/curve.py).

Source: vLLM 0.32.0, vllm/entrypoints/serve/instrumentator/basic.py, kv_event_sources();
vllm/distributed/kv_events.py, ZmqEventPublisher.offset_endpoint_port().
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from pdgate.cluster.address import HIGHEST_PORT
from pdgate.cluster.kv_events import curve
from pdgate.protocols.instance import Instance

ASK: Final = "ask"
"""Instead of a template."""

PATH: Final = "/kv_event_sources"
MOST_RANKS: Final = 1024
_WILDCARDS: Final = frozenset({"*", "0.0.0.0", "::", ""})


class BadSource(ValueError):
    """A source that cannot be subscribed to; the message says why, for operators."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """
    Attributes:
        endpoint: Where batches are published.
        replay_endpoint: Where those missed are repeated; empty for nowhere.
        topic: What batches are marked with.
        proven: How to be let in there; None where all are.
    """

    endpoint: str
    replay_endpoint: str = ""
    topic: str = ""
    proven: curve.Listening | None = None


Sources = Mapping[int, EventSource]
"""By data-parallel rank."""


def check_template(text: str) -> str:
    """Raises ValueError."""
    if text not in ("", ASK):
        _endpoint(text, "host", 0)
    return text


def from_template(endpoint: str, replay_endpoint: str, topic: str, instance: Instance) -> Sources:
    """Those of an instance, all spelled alike. Raises BadSource."""
    first = instance.dp_rank or 0
    ranks = range(first, first + (1 if instance.dp_rank is not None else instance.dp_size))
    return {
        rank: EventSource(
            _endpoint(endpoint, instance.host, rank),
            _endpoint(replay_endpoint, instance.host, rank) if replay_endpoint else "",
            topic,
        )
        for rank in ranks
    }


def from_answer(body: bytes, instance: Instance, secrets: Sequence[str] = ()) -> Sources:
    """What the engine itself says, to who has these secrets. Raises BadSource."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise BadSource(f"{PATH} did not answer with JSON") from None
    if not isinstance(said, dict) or len(said) > MOST_RANKS:
        raise BadSource(f"{PATH} did not answer with an object of ranks")
    sources = {}
    for name, config in said.items():
        if not name.isdecimal() or not isinstance(config, dict):
            raise BadSource(f"{PATH} did not answer with an object of ranks")
        rank = int(name)
        if instance.dp_rank is None or rank == instance.dp_rank:
            sources[rank] = _source(config, instance.host, secrets)
    if not sources:
        raise BadSource("it publishes no KV events")
    return sources


def _source(config: Mapping[str, Any], host: str, secrets: Sequence[str]) -> EventSource:
    endpoint, topic = config.get("endpoint"), config.get("topic", "")
    replay = config.get("replay_endpoint") or ""
    if not isinstance(endpoint, str) or not isinstance(replay, str) or not isinstance(topic, str):
        raise BadSource(f"{PATH} did not say an endpoint")
    try:
        proven = curve.listening(config, secrets)
    except curve.UnprovenPublisher as error:
        raise BadSource(str(error)) from None
    return EventSource(
        _endpoint(endpoint, host, 0),
        _endpoint(replay, host, 0) if replay else "",
        topic,
        proven,
    )


def _endpoint(text: str, host: str, rank: int) -> str:
    """What to dial. Raises BadSource."""
    dialled = f"[{host}]" if ":" in host else host
    try:
        parts = urlsplit(text.replace("{host}", dialled).replace("*", ""))
        port = parts.port
    except ValueError:
        port, parts = None, urlsplit("")
    if parts.scheme != "tcp" or not port or port + rank > HIGHEST_PORT:
        raise BadSource(f"{text!r} is not an endpoint like tcp://host:port")
    name = host if (parts.hostname or "") in _WILDCARDS else parts.hostname or host
    return f"tcp://[{name}]:{port + rank}" if ":" in name else f"tcp://{name}:{port + rank}"
