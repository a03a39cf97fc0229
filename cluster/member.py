"""One engine's entry in a directory: a key, and a JSON object under it.

    /workers/decode/10.0.0.2/8200
    {"protocol": "vllm-nixl", "model": "llama", "kv": "10.0.0.2:5600", "epoch": "9f3c...",
     "tp": 1, "block_tokens": 16, "state": "ready", "rack": "r7", "zone": "east"}

Role, host and port are the key's, so no URL can be announced; "host" in the value is no
address but the machine's name, for who wants engines near each other. All fields may be
missing, and unknown ones are left alone. Who changes what a field means says "version": 2,
which is refused here. AWS Neuron's own proxy and engines write {"connections": []}, which is a
member of the protocol "neuron".

Source of keys and that value: AWS Neuron's fork of vLLM, its disaggregated inference proxy
("neuron_dis_inference" examples): etcd keys /workers/{prefill|decode}/{ip}/{api port}.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import msgspec

from pdgate.cluster import address
from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.place import NOWHERE, Place

FOLDER: Final = "/workers/"
READY: Final = "ready"
DRAINING: Final = "draining"
NEURON: Final = "neuron"
VERSION: Final = 1
"""Of what is written here; a higher one may mean something else by the same words."""

MAX_VALUE_BYTES: Final = 64 << 10
LONGEST_TEXT: Final = 512
LONGEST_FIELD: Final = 6 * LONGEST_TEXT + 2
"""In bytes as it is written: a character may be an escape."""
TOO_LONG: Final = object()
HIGHEST_COUNT: Final = 1 << 20


class BadMember(ValueError):
    """An entry that cannot be used; the message says why, for operators."""


@dataclass(frozen=True, slots=True)
class Member:
    """
    Attributes:
        host: IPv6 without brackets.
        protocol: Empty if the reader's default is meant.
        model: What it serves; empty if it is to be asked.
        kv: "host:port" of its KV side; empty if the protocol has none.
        kv_notify: As in Instance.
        epoch: Another one for each process, so that a restart at the same address shows.
        tp: Ranks that its KV cache is split over.
        block_tokens: Tokens in a KV block; 0 if unsaid.
        dp_size: Data-parallel ranks behind the address.
        pair: Name of the pair that it is a half of; empty if it meets all.
        state: "ready"; with anything else it is to get no calls.
        place: Its host there is the machine, whatever its name; empty for that of the address.
    """

    role: Role
    host: str
    port: int
    scheme: Literal["http", "https"] = "http"
    protocol: str = ""
    generation: str = ""
    model: str = ""
    kv: str = ""
    epoch: str = ""
    tp: int = 1
    block_tokens: int = 0
    dp_size: int = 1
    pair: str = ""
    state: str = READY
    place: Place = NOWHERE
    kv_notify: int = 0

    @property
    def key(self) -> str:
        return f"{FOLDER}{self.role}/{self.host}/{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{address.joined(self.host, self.port)}"

    @property
    def takes_calls(self) -> bool:
        return self.state == READY

    def draining(self) -> "Member":
        return replace(self, state=DRAINING)

    def value(self) -> bytes:
        """Value without what the key says, and what was not said of the place."""
        said = asdict(self)
        place = said.pop("place")
        if not said["kv_notify"]:
            del said["kv_notify"]
        for name in ("role", "host", "port"):
            del said[name]
        said |= {name: value for name, value in place.items() if value}
        return json.dumps(said).encode()

    def instance(self) -> Instance:
        """The record, with protocol and generation as they were said, which may be not at all.

        Its id is the address: a role may change, and the account of an engine goes on.
        """
        return Instance(
            id=address.joined(self.host, self.port),
            url=self.url,
            role=self.role,
            protocol=self.protocol,
            generation=self.generation,
            model=self.model,
            kv=self.kv,
            dp_size=self.dp_size,
            kv_notify=self.kv_notify,
            tp=self.tp,
            pair=self.pair,
            place=replace(self.place, host=self.place.host or self.host),
        )


def read(key: str, value: bytes) -> Member:
    """Raises BadMember."""
    if len(value) > MAX_VALUE_BYTES:
        raise BadMember(f"its value has more than {MAX_VALUE_BYTES} bytes")
    role, host, port = _place(key)
    said = _said(value)
    if (version := _count(said, "version", 1)) > VERSION:
        raise BadMember(f"it is of version {version}, and what is known here is {VERSION}")
    scheme = said.get("scheme", "http")
    if scheme not in ("http", "https"):
        raise BadMember(f"the scheme {scheme!r} is neither http nor https")
    member = Member(
        role,
        host,
        port,
        scheme,
        protocol=_text(said, "protocol"),
        generation=_text(said, "generation"),
        model=_text(said, "model"),
        kv=_kv(said),
        epoch=_text(said, "epoch"),
        tp=_count(said, "tp", 1),
        kv_notify=_count(said, "kv_notify", 0),
        block_tokens=_count(said, "block_tokens", 0),
        dp_size=_count(said, "dp_size", 1),
        pair=_text(said, "pair"),
        state=_text(said, "state") or READY,
        place=Place(_text(said, "host"), _text(said, "rack"), _text(said, "zone")),
    )
    if not member.protocol and "connections" in said:
        member = replace(member, protocol=NEURON)
    return member


def _place(key: str) -> tuple[Role, str, int]:
    parts = key.removeprefix(FOLDER).split("/")
    if not key.startswith(FOLDER) or len(parts) != 3:
        raise BadMember("its key is not /workers/<role>/<host>/<port>")
    try:
        role = Role(parts[0])
    except ValueError:
        raise BadMember(f"no role is called {parts[0]!r}") from None
    try:
        return role, address.host(parts[1]), address.port(parts[2])
    except ValueError as error:
        raise BadMember(str(error)) from None


_UNSAID: Final = msgspec.Raw()


class _EntrySaid(msgspec.Struct):
    """What is looked for in an entry, each as it is written there; all else is skipped, not built."""

    version: msgspec.Raw = _UNSAID
    scheme: msgspec.Raw = _UNSAID
    protocol: msgspec.Raw = _UNSAID
    generation: msgspec.Raw = _UNSAID
    model: msgspec.Raw = _UNSAID
    kv: msgspec.Raw = _UNSAID
    epoch: msgspec.Raw = _UNSAID
    tp: msgspec.Raw = _UNSAID
    block_tokens: msgspec.Raw = _UNSAID
    dp_size: msgspec.Raw = _UNSAID
    kv_notify: msgspec.Raw = _UNSAID
    pair: msgspec.Raw = _UNSAID
    state: msgspec.Raw = _UNSAID
    host: msgspec.Raw = _UNSAID
    rack: msgspec.Raw = _UNSAID
    zone: msgspec.Raw = _UNSAID
    connections: msgspec.Raw = _UNSAID


_read = msgspec.json.Decoder(_EntrySaid).decode


def _said(value: bytes) -> dict[str, Any]:
    try:
        found = _read(value)
        return {
            name: msgspec.json.decode(raw) if len(raw) <= LONGEST_FIELD else TOO_LONG
            for name in found.__struct_fields__
            if (raw := bytes(getattr(found, name)))
        }
    except msgspec.ValidationError:
        raise BadMember("its value is no JSON object") from None
    # Deep nesting exhausts the parser's stack; ValueError: a number of too many digits, or no UTF-8.
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise BadMember("its value is no JSON") from None


def _text(said: dict[str, Any], name: str) -> str:
    found = said.get(name, "")
    if not isinstance(found, str) or len(found) > LONGEST_TEXT or not found.isprintable():
        raise BadMember(f"{name!r} is not a text of at most {LONGEST_TEXT} characters")
    return found


def _kv(said: dict[str, Any]) -> str:
    found = _text(said, "kv")
    try:
        return address.host_and_port(found) if found else ""
    except ValueError as error:
        raise BadMember(f"'kv': {error}") from None


def _count(said: dict[str, Any], name: str, least: int) -> int:
    """The least one if nothing is said."""
    found = said.get(name, least)
    # bool is an int to Python, and no number in JSON.
    if type(found) is not int or not least <= found <= HIGHEST_COUNT:
        raise BadMember(f"{name!r} is not a whole number from {least} to {HIGHEST_COUNT}")
    return found
