"""What the pages of docs/wire show, made by the forwarders themselves.

A page holds inputs, and examples that follow from them:

    ```toml gateway                    the fleet, read by the real configuration
    ```json query                      what a Mooncake bootstrap server says, where one is asked
    ```json introduction               what prefill says of itself, where it is asked
    ```json word                       what an engine says to the gateway, where a leg waits for it
    ```json answer [a]                 what prefill answers, for hand-overs that wait for it
    ```json batch [d] prefill          a leg: mode, generation if there are several, role;
                                       a staged leg only where it is not as in batch

The call is the same for all pages and stands in docs/wire/README.md. A leg is shown as
what it changes of the call:

    {"x-request-id": ..., "headers": {...}, "set": {...}, "left out": [...]}

`python -m tests.docs.wire` writes the examples of all pages anew.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from pdgate.forwarders import registry
from pdgate.forwarders.base import Delegation, Forwarder, HandOff, Leg, Mode, Plain, Rendezvous
from pdgate.forwarders.sglang import Sglang
from pdgate.gateway.config import load
from pdgate.protocols import plugins
from pdgate.protocols.call import CHAT, Call, encode, parse_object
from pdgate.protocols.dialects import mooncake
from pdgate.protocols.instance import Instance, Role
from tests.docs.pages import DOCS, labelled

FOLDER: Final = DOCS / "wire"
ATTEMPT: Final = "c7-1"
ROOM: Final = 4_611_686_018_427_387_905
GATEWAY: Final = "10.0.0.9:7600"
WIDTH: Final = 92

_LEG = re.compile(r"(batch|staged)( ([a-z-]+))? (prefill|decode|plain|local)")


NO_PROTOCOL: Final = ("README", "messenger", "epd")
"""Pages on what no forwarder sends."""


def pages() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.md") if path.stem not in NO_PROTOCOL)


def call() -> Call:
    text = labelled(FOLDER / "README.md", "json")["call"]
    return Call("c7", ATTEMPT, CHAT, parse_object(text.encode()), streams=True)


def shown(page: Path) -> dict[str, Any]:
    """Label -> example, as the page has it."""
    return {
        label: json.loads(text)
        for label, text in labelled(page, "json").items()
        if _LEG.fullmatch(label)
    }


def made(page: Path) -> dict[str, Any]:
    """Label -> example, as the forwarders of today make it, for all that they can do."""
    found: dict[str, Any] = {}
    for mode in Mode:
        if registry.modes(page.stem)[mode]:
            continue
        for generation in _generations(page.stem, mode):
            forwarder = registry.load(page.stem, mode, generation)
            for role, leg in _legs(page, forwarder, generation):
                batch, label = (_label(of, generation, role) for of in (Mode.BATCH, mode))
                changes = _changes(_told(page, leg))
                if label == batch or changes != found.get(batch):
                    found[label] = changes
    return found


def _label(mode: Mode, generation: str, role: str) -> str:
    return " ".join(word for word in (mode.value, generation, role) if word)


def _generations(protocol: str, mode: Mode) -> list[str]:
    declared = plugins.find(plugins.FORWARDERS, "protocol", protocol).load()
    members = getattr(declared, "members", {(mode, ""): declared})
    return [generation for of, generation in members if of is mode]


def _legs(page: Path, forwarder: Forwarder, generation: str) -> Iterator[tuple[str, Leg]]:
    asked, fleet = call(), _fleet(page)
    if isinstance(forwarder, Plain):
        yield "plain", forwarder.local(asked, fleet[Role.PLAIN])
        return
    prefill, decode = fleet[Role.PREFILL], fleet[Role.DECODE]
    if forwarder.introduction is not None:
        said = labelled(page, "json")["introduction"].encode()
        prefill = replace(prefill, engine_ids=((0, forwarder.introduction.read(said)),))
    if isinstance(forwarder, Sglang):
        forwarder = Sglang(lambda: ROOM)
    match forwarder:
        case HandOff():
            answers = labelled(page, "json")
            answer = answers.get(f"answer {generation}", answers.get("answer", "{}"))
            reply = parse_object(answer.encode())
            yield "prefill", forwarder.prefill(asked, prefill)
            yield "decode", forwarder.decode(asked, prefill, decode, reply)
        case Rendezvous():
            to_prefill, to_decode = forwarder.legs(asked, prefill, decode)
            yield "prefill", to_prefill
            yield "decode", to_decode
        case Delegation():
            yield "decode", forwarder.leg(asked, prefill, decode)
    local = forwarder.local(asked, decode)
    if local.body != asked.body:
        yield "local", local


def _fleet(page: Path) -> dict[Role, Instance]:
    with TemporaryDirectory() as folder:
        file = Path(folder, "pdgate.toml")
        file.write_text(labelled(page, "toml")["gateway"], encoding="utf-8")
        fleet = load(file, {}).fleet
    found = {instance.role: instance for instance in fleet}
    query = labelled(page, "json").get("query")
    if query:
        engine_ids = mooncake.engine_ids(json.loads(query))
        found[Role.PREFILL] = replace(found[Role.PREFILL], engine_ids=engine_ids)
    return found


def _told(page: Path, leg: Leg) -> Leg:
    """With what it waits for, and is addressed by."""
    if leg.addressed is not None:
        leg = msgspec.structs.replace(leg, body=leg.addressed(f"http://{GATEWAY}"))
    if leg.awaits is not None and leg.awaits.write is not None:
        word = parse_object(labelled(page, "json")["word"].encode())
        leg = msgspec.structs.replace(leg, body=leg.awaits.write(word))
    return leg


def _changes(leg: Leg) -> dict[str, Any]:
    before, after = _plain(call().body), _plain(leg.body)
    example: dict[str, Any] = {"x-request-id": leg.request_id or ATTEMPT}
    if leg.headers:
        example["headers"] = dict(leg.headers)
    # Compared as text: false is not 0, and 1.0 is not 1, for whoever reads the wire.
    example["set"] = {
        name: found
        for name, found in after.items()
        if name not in before or json.dumps(before[name]) != json.dumps(found)
    }
    if left_out := [name for name in before if name not in after]:
        example["left out"] = left_out
    return example


def _plain(body: object) -> dict[str, Any]:
    return msgspec.json.decode(encode(body), type=dict[str, Any])


def pretty(found: Any, indent: int = 0, used: int = 0) -> str:
    """JSON in which short objects stay on one line. `used`: what stands before it there."""
    short = json.dumps(found)
    if indent + used + len(short) <= WIDTH and (indent or not isinstance(found, dict)):
        return short
    if not isinstance(found, dict) or not found:
        return short
    lines = []
    for name, inner in found.items():
        key = f"{json.dumps(name)}: "
        lines.append(" " * (indent + 2) + key + pretty(inner, indent + 2, len(key)))
    return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"


def rewritten(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    examples = made(page)

    def example(found: re.Match[str]) -> str:
        label = found[1]
        if label not in examples:
            return found[0]
        return f"```json {label}\n{pretty(examples[label])}\n```"

    return re.sub(r"```json ([^\n]+)\n.*?^```", example, text, flags=re.DOTALL | re.MULTILINE)


if __name__ == "__main__":
    for page in pages():
        page.write_text(rewritten(page), encoding="utf-8")
