"""Findings about KV: where it is fetched, and whether it arrives."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from ipaddress import ip_address
from typing import Final, TypeVar

from pdgate.operations.doctor.checks import (
    BOOTSTRAP_SILENT,
    ENGINE_ID_SHARED,
    HAND_OVER_FAILS,
    KEEPS_NO_KV,
    KV_NOT_TAKEN,
    LOOPBACK_ANNOUNCED,
    PINNED_ENGINE_ID,
    SIDE_CHANNEL_CLOSED,
    SIDE_CHANNEL_SHARED,
    Finding,
)
from pdgate.operations.doctor.seen import Examined, SeenEngine
from pdgate.protocols.instance import Role

RANDOM: Final = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
"""A UUID, as vLLM draws one at each start; it may carry a data-parallel rank behind it."""

SAME_START_SECONDS: Final = 1.0
TAKEN_SHARE: Final = 0.5
"""Of a prompt: what is less was not taken over. The rest may be an incomplete last block."""

Key = TypeVar("Key", bound=Hashable)


def findings(examined: Examined) -> Iterator[Finding]:
    crossed = {decode.id for decode in examined.of(Role.DECODE) if _keeps(examined, decode.id)}
    for prefill in examined.of(Role.PREFILL):
        yield from _bootstrap(prefill)
        yield from _kept(examined, prefill, explained=bool(crossed))
        yield from _engine_id(examined, prefill)
        for host, _ in announced(examined, prefill):
            if _is_here(host) and not _is_here(prefill.instance.host):
                found = f"{host}, while its URL is {prefill.instance.url}"
                yield Finding(LOOPBACK_ANNOUNCED, (prefill.id,), found)
    yield from _shared(examined)
    for dial in examined.probes.dials:
        if dial.trouble:
            found = f"{dial.host}:{dial.port}: {dial.trouble}"
            yield Finding(SIDE_CHANNEL_CLOSED, (dial.instance,), found)
    yield from _crossings(examined)


def announced(examined: Examined, prefill: SeenEngine) -> list[tuple[str, int]]:
    """Addresses at which an engine says that its KV is fetched."""
    found = list(() if prefill.bootstrap is None else prefill.bootstrap.workers)
    kept = examined.probes.kept.get(prefill.id)
    if kept is not None and kept.address is not None:
        found.append(kept.address)
    return found


def _keeps(examined: Examined, engine: str) -> bool:
    turned = examined.probes.turned.get(engine)
    return turned is not None and turned.params is not None


def _bootstrap(prefill: SeenEngine) -> Iterator[Finding]:
    if prefill.bootstrap is not None and prefill.bootstrap.trouble:
        yield Finding(BOOTSTRAP_SILENT, (prefill.id,), prefill.bootstrap.trouble)


def _kept(examined: Examined, prefill: SeenEngine, *, explained: bool) -> Iterator[Finding]:
    """`explained`: the two are crossed, which says it better."""
    kept = examined.probes.kept.get(prefill.id)
    if kept is not None and not kept.params and not explained:
        found = kept.trouble or "it answered 200 without kv_transfer_params"
        yield Finding(KEEPS_NO_KV, (prefill.id,), found)


def _engine_id(examined: Examined, prefill: SeenEngine) -> Iterator[Finding]:
    engine_id = examined.engine_id(prefill)
    if not engine_id:
        return
    before = examined.before.get(prefill.instance.url)
    if not RANDOM.search(engine_id):
        yield Finding(PINNED_ENGINE_ID, (prefill.id,), f"{engine_id!r} is no random one")
    elif before is not None and prefill.started is not None:
        restarted = abs(prefill.started - before[1]) > SAME_START_SECONDS
        if restarted and before[0] == engine_id:
            found = f"{engine_id!r} is still its name after a restart"
            yield Finding(PINNED_ENGINE_ID, (prefill.id,), found)


def _shared(examined: Examined) -> Iterator[Finding]:
    prefills = examined.of(Role.PREFILL)
    ids = ((one.id, name) for one in prefills if (name := examined.engine_id(one)))
    for name, engines in _several(ids):
        yield Finding(ENGINE_ID_SHARED, engines, f"{name!r}")
    addresses = ((one.id, where) for one in prefills for where in announced(examined, one))
    for (host, port), engines in _several(addresses):
        yield Finding(SIDE_CHANNEL_SHARED, engines, f"{host}:{port}")


def _several(told: Iterable[tuple[str, Key]]) -> list[tuple[Key, tuple[str, ...]]]:
    """What more than one engine says."""
    who: dict[Key, list[str]] = defaultdict(list)
    for engine, what in told:
        if engine not in who[what]:
            who[what].append(engine)
    return [(what, tuple(engines)) for what, engines in who.items() if len(engines) > 1]


def _crossings(examined: Examined) -> Iterator[Finding]:
    for one in examined.probes.crossings:
        both = (one.prefill, one.decode)
        if one.trouble:
            yield Finding(HAND_OVER_FAILS, both, one.trouble)
        elif one.taken_tokens is not None and one.taken_tokens < TAKEN_SHARE * one.prompt_tokens:
            found = f"{one.taken_tokens} of {one.prompt_tokens} tokens came from prefill"
            yield Finding(KV_NOT_TAKEN, both, found)


def _is_here(host: str) -> bool:
    """Whether only the machine itself finds it there."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
