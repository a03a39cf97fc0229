"""One engine as it is written down: a table in TOML, or one --instance flag.

[[instances]]
role = "prefill"
url = "http://10.0.0.1:8100"
kv = "10.0.0.1:14579"

--instance role=prefill,url=http://10.0.0.1:8100,kv=10.0.0.1:14579

With dp = 8 it is eight instances, one for each data-parallel rank behind the URL, as an engine's ranks share neither
queue nor cache.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.setting import Section
from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.place import Place

HIGHEST_PORT = 65535
MOST_RANKS = 1024
"""Behind one URL."""


def base_url(text: str) -> str:
    """http(s)://host[:port][/path] without a trailing slash. Raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not a URL like http://host:port")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{text!r} may have a host, a port and a path only")
    _check_port(parts.netloc, text)
    return text.rstrip("/")


def kv_address(text: str) -> str:
    """host:port, an IPv6 host in brackets; empty for none. Raises ValueError."""
    if not text:
        return text
    parts = urlsplit(f"//{text}")
    if not parts.hostname or text != parts.netloc or _check_port(text, text) is None:
        raise ValueError(f"{text!r} is not an address like host:port")
    return text


def host_and_port(text: str) -> tuple[str, int]:
    """Host and port of a listener; port 0 takes a free one, and the host has no brackets. Raise ValueError."""
    parts = urlsplit(f"//{text}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if not parts.hostname or port is None or text != parts.netloc:
        raise ValueError(f"{text!r} is not an address like host:port")
    return parts.hostname, port


def _check_port(netloc: str, shown: str) -> int | None:
    try:
        port = urlsplit(f"//{netloc}").port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"the port of {shown!r} is not a number from 1 to {HIGHEST_PORT}")
    return port


class InstanceEntry(Section):
    """One engine as the operator wrote it; what is left out is filled in by `records`.

    Attributes:
        protocol: Empty for `pdd_protocol`, or "plain" in the role of that name.
        generation: Empty for what `mooncake_generation` or `neuron_generation` says.
        pair: Name that both halves of a pair have, which then meet each other and no other engine.
        id: Empty for role and number.
        kv_notify: Port at which peers say what is done; 0 for the protocol's (mori-io).
        dp: Data-parallel ranks behind the URL, each of which becomes an instance, ID-dp0 and so on.
        tp: Its tensor-parallel size, where a protocol has to know (mori-io); 0 if it is not known.
        host: Name of its machine; empty for that of the URL. Policies may prefer near pairs.
        rack: Name of its rack, if it is known.
        zone: Name of its zone, if it is known.
    """

    role: Role
    url: Annotated[str, AfterValidator(base_url)]
    kv: Annotated[str, AfterValidator(kv_address)] = ""
    protocol: str = ""
    model: str = ""
    generation: str = ""
    dp_rank: Annotated[int, Field(ge=0)] | None = None
    dp_size: Annotated[int, Field(ge=1)] = 1
    dp: Annotated[int, Field(ge=1, le=MOST_RANKS)] = 1
    kv_notify: Annotated[int, Field(ge=0, le=HIGHEST_PORT)] = 0
    tp: Annotated[int, Field(ge=0)] = 0
    pair: str = ""
    id: str = ""
    host: str = ""
    rack: str = ""
    zone: str = ""


def from_flag(text: str) -> dict[str, Any]:
    """The table that "role=prefill,url=..." stands for. Raises ConfigError."""
    table: dict[str, Any] = {}
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise ConfigError(f"--instance {text!r}: {pair!r} is not of the form key=value")
        if name in table:
            raise ConfigError(f"--instance {text!r}: {name!r} is given twice")
        # Whatever is no number stays text, so that the type check names the key.
        is_number = name in ("dp", "dp_rank", "dp_size", "kv_notify", "tp") and value.isdecimal()
        table[name] = int(value) if is_number else value
    return table


def records(
    entries: Sequence[InstanceEntry],
    default_protocol: Callable[[str], str],
    default_generation: Callable[[str], str],
) -> tuple[Instance, ...]:
    """The records of all entries, what was left out filled in: the protocol by the model.

    Raises ValueError for an id, or a role at one address, that occurs twice.
    """
    taken = Counter(entry.id for entry in entries if entry.id)
    if doubles := [name for name, times in taken.items() if times > 1]:
        raise ValueError(f"several instances have the id {doubles[0]!r}")
    for entry in entries:
        if entry.dp > 1 and (entry.dp_rank is not None or entry.dp_size != 1):
            raise ValueError(
                f"{entry.url!r}: 'dp' stands for all ranks, so neither 'dp_rank' nor 'dp_size' goes with it"
            )
    addresses = Counter(
        (entry.role, entry.url, rank) for entry in entries for rank, _ in _ranks(entry)
    )
    for (role, url, _), times in addresses.items():
        if times > 1:
            raise ValueError(f"several {role} instances have the URL {url!r}")
    made = []
    for entry in entries:
        name = entry.id or _free_id(entry.role, taken)
        taken[name] += 1
        protocol = entry.protocol or (
            default_protocol(entry.model) if entry.role.hands_over else "plain"
        )
        made += [
            Instance(
                id=name if entry.dp == 1 else f"{name}-dp{rank}",
                url=entry.url,
                role=entry.role,
                protocol=protocol,
                generation=entry.generation or default_generation(protocol),
                model=entry.model,
                kv=entry.kv,
                dp_rank=rank,
                dp_size=size,
                kv_notify=entry.kv_notify,
                tp=entry.tp,
                pair=entry.pair,
                place=_place(entry),
            )
            for rank, size in _ranks(entry)
        ]
    ids = Counter(instance.id for instance in made)
    if doubles := [name for name, times in ids.items() if times > 1]:
        raise ValueError(f"several instances have the id {doubles[0]!r}")
    return tuple(made)


def _ranks(entry: InstanceEntry) -> Sequence[tuple[int | None, int]]:
    """Rank, and how many there are, of each of its instances; None leaves the rank to the engine."""
    if entry.dp == 1:
        return ((entry.dp_rank, entry.dp_size),)
    return [(rank, entry.dp) for rank in range(entry.dp)]


def _place(entry: InstanceEntry) -> Place:
    return Place(entry.host or urlsplit(entry.url).hostname or "", entry.rack, entry.zone)


def _free_id(role: Role, taken: Mapping[str, int]) -> str:
    number = 0
    while f"{role}-{number}" in taken:
        number += 1
    return f"{role}-{number}"
