"""A package of somebody else adds a protocol with nothing but an entry point."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdgate.forwarders import registry
from pdgate.forwarders.base import HandOff, Mode
from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.gateway import installed
from pdgate.protocols import plugins
from pdgate.protocols.call import value
from pdgate.protocols.instance import Instance, Role
from tests.support.scripted import Crossing, Scripted, chat

MODULE = '''
"""ACME engines: prefill answers with a ticket, decode redeems it."""

from typing import ClassVar

from pdgate.forwarders.base import HandOff, Leg, one_token
from pdgate.forwarders.kv_lease import KvRules
from pdgate.protocols.call import Call, Json, value
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Instance

FIELD = "acme_ticket"


class Acme(HandOff):
    name: ClassVar = "acme"
    kv: ClassVar = KvRules(lease_seconds=5.0)

    def prefill(self, call: Call, at: Instance) -> Leg:
        return Leg(at, call.path, one_token(call.body, acme_keep=True))

    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        if not value(reply, FIELD):
            raise EngineFailed("prefill gave no ticket")
        body = {**call.body, FIELD: reply[FIELD]}
        return Leg(decode, call.path, body, {"x-acme-from": prefill.host})
'''

P = Instance("p0", "http://10.0.0.1:8100", Role.PREFILL, "acme")
D = Instance("d0", "http://10.0.1.1:8200", Role.DECODE, "acme")


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As pip would have put it there."""
    (tmp_path / "pdgate_acme.py").write_text(MODULE)
    info = tmp_path / "pdgate_acme-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pdgate-acme\nVersion: 3.1\n")
    (info / "entry_points.txt").write_text("[pdgate.forwarders]\nacme = pdgate_acme:Acme\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield info
    sys.modules.pop("pdgate_acme", None)


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("mode", Mode)
def test_it_is_found_beside_ours(mode: Mode) -> None:
    assert {"acme", "vllm-nixl"} <= set(plugins.names(plugins.FORWARDERS))
    assert isinstance(registry.load("acme", mode), HandOff)


@pytest.mark.usefixtures("acme")
def test_the_listing_names_its_package() -> None:
    found = {one.name: one for one in installed.protocols()}["acme"]

    assert (found.package, found.version, found.error) == ("pdgate-acme", "3.1", "")
    assert json.loads(json.dumps(found.as_json()))["modes"]["staged"]["possible"]
    assert any("pdgate-acme 3.1" in line for line in installed.lines(installed.protocols()))


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("mode", Mode)
async def test_calls_cross_its_engines(mode: Mode) -> None:
    """With failover, reservations and records, none of which it had to write."""
    engines = Scripted(p0={"choices": [], "acme_ticket": "t-7"}, d0=[b"data: fine\n\n"])

    told = await Crossing(engines, P, D, mode=mode).ask(chat())

    assert told.body == b"data: fine\n\n"
    (prefill, _), (decode, _) = engines.sent
    assert prefill.body["acme_keep"] is True
    assert value(decode.body, "acme_ticket") == "t-7"
    assert decode.headers == {"x-acme-from": "10.0.0.1"}
    assert (told.record.protocol, told.record.handed_over) == ("acme", True)


@pytest.mark.usefixtures("acme")
async def test_its_failures_are_retried_like_ours() -> None:
    engines = Scripted(p0={"choices": []}, d0=[b"data: fine\n\n"])

    told = await Crossing(engines, P, D, on_prefill_failure=OnPrefillFailure.RETRY).ask(chat())

    assert str(told.error) == "prefill gave no ticket"
    assert engines.visits == ["p0", "p0"]


def test_a_package_that_cannot_be_imported_is_listed_with_its_error(acme: Path) -> None:
    (acme / "entry_points.txt").write_text("[pdgate.forwarders]\nbroken = pdgate_nowhere:X\n")

    found = {one.name: one for one in installed.protocols()}["broken"]

    assert found.error.startswith("ModuleNotFoundError")
    assert found.modes == {}


def test_a_name_that_is_taken_names_both_packages(acme: Path) -> None:
    """Which of them would win would depend on the order of installation."""
    taken = "[pdgate.forwarders]\nvllm-nixl = pdgate_acme:Acme\n"
    (acme / "entry_points.txt").write_text(taken)

    with pytest.raises(LookupError, match="declared by several packages") as caught:
        registry.load("vllm-nixl", Mode.BATCH)

    assert "pdgate-acme" in str(caught.value)
    assert "pdgate," in str(caught.value) or str(caught.value).endswith("pdgate")
