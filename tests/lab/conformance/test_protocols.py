"""The kit: our protocols pass it, and forwarders that are broken fail what they break.

The broken ones are a package of somebody else's, in front of real engines that speak vllm-nixl. Each
has prompts of its own, the same ones in each run: of those that are drawn, one in some hundred runs has a
place where two tokens are as likely, and either may be said.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pdgate.lab.conformance import CHECKS, Report, Verdict, Wanted, run
from pdgate.lab.conformance.bench import LEASE_SECONDS
from pdgate.protocols import plugins
from tests.end_to_end.reference.fleet import Engine, Fleet, Pair
from tests.support.redis import redis_server

HARMS = {"killed-engines", "late-decode"}
"""They start engines of their own, so one protocol has to do for all."""

HARMLESS = tuple(one.id for one in CHECKS if one.id not in HARMS)
LATELY = {
    "ascend-layerwise",
    "lmcache",
    "lmdeploy",
    "mori-io",
    "offload-p2p",
    "store-mediated",
    "tensorrt-llm",
    "tpu",
}
BRIEFLY = (
    "same-tokens",
    "streams",
    "order-of-legs",
    "verified-transfer",
    "prefill-reads-only",
    "several-choices",
    "short-answers",
    "foreign-peers",
    "release",
    "cancel",
)
"""Of protocols that share what is left out with the others: one part of the engine, one of the gateway."""

NEWEST = {"vllm-mooncake": "d"}
"""Where one must be named."""

KNOWS_NO_KV = {"verified-transfer", "prefill-reads-only"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as running:
        yield Fleet(running, sys.executable)


@pytest.fixture(scope="module")
def alone(fleet: Fleet) -> Engine:
    return fleet.single()


@pytest.fixture(scope="module")
def pair(fleet: Fleet) -> Pair:
    """With the kit's own lease, which is soon over, as broken forwarders leave KV behind."""
    prefill, decode = (
        fleet.engine(role, "vllm-nixl", "shm", "--lease-seconds", f"{LEASE_SECONDS:g}")
        for role in ("prefill", "decode")
    )
    return Pair("vllm-nixl", prefill, decode)


def verdicts(report: Report) -> dict[str, Verdict]:
    return {one.check.id: one.verdict for one in report.results}


@pytest.mark.parametrize("protocol", plugins.names(plugins.FORWARDERS))
def test_our_protocols_pass(protocol: str, alone: Engine, tmp_path: Path) -> None:
    with ExitStack() as running:
        queued = protocol == "decode-first"
        queue = running.enter_context(redis_server(tmp_path)).url if queued else ""

        wanted = Wanted(
            protocol,
            generation=NEWEST.get(protocol, ""),
            alone=alone.url,
            queue=queue,
            checks=BRIEFLY if protocol in LATELY else HARMLESS,
            salt=protocol,
        )
        report = run(wanted)

    assert [str(one) for one in report.failed] == []
    skipped = {one.check.id for one in report.results if one.verdict is Verdict.NOT_APPLICABLE}
    assert skipped == (KNOWS_NO_KV if protocol == "plain" else set())


def test_engines_may_die_and_come_late(alone: Engine) -> None:
    checks = (*HARMS, "order-of-legs")
    wanted = Wanted("vllm-nixl", mode="staged", alone=alone.url, checks=checks, salt="dying")

    assert set(verdicts(run(wanted)).values()) == {Verdict.PASS}


BROKEN = '''
from pdgate.forwarders.base import Leg
from pdgate.forwarders.vllm_nixl import VllmNixl


class Forgets(VllmNixl):
    """Decode is not told what the client said of the end of the answer."""

    name = "forgets"

    def decode(self, call, prefill, decode, reply):
        leg = super().decode(call, prefill, decode, reply)
        return Leg(leg.to, leg.path, {k: v for k, v in leg.body.items() if k != "stop"})


class Recomputes(VllmNixl):
    """Decode is not told where the KV is, and nobody fetches it."""

    name = "recomputes"

    def decode(self, call, prefill, decode, reply):
        return Leg(decode, call.path, call.body)


class Talks(VllmNixl):
    """Prefill is asked for the whole answer."""

    name = "talks"

    def prefill(self, call, at):
        leg = super().prefill(call, at)
        limits = {k: v for k, v in call.body.items() if k.startswith("max_")}
        return Leg(leg.to, leg.path, {**leg.body, **limits})


class First(VllmNixl):
    """What is not split is cut down to one prompt and one choice."""

    name = "first"

    def local(self, call, at):
        prompt = call.value("prompt")
        one = prompt[0] if isinstance(prompt, list) else prompt
        body = {k: v for k, v in call.body.items() if k != "n"}
        return Leg(at, call.path, {**body, "prompt": one} if prompt else body)


class SplitsAll(VllmNixl):
    """Prefill keeps the blocks of each prompt of a list, and decode fetches those of one."""

    name = "splits-all"

    def why_local(self, call):
        return None
'''


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installed while the test runs, here and in the processes that the kit starts."""
    (tmp_path / "pdgate_broken.py").write_text(BROKEN)
    info = tmp_path / "pdgate_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: pdgate-broken\nVersion: 1.0\n")
    points = {
        "forgets": "Forgets",
        "recomputes": "Recomputes",
        "talks": "Talks",
        "first": "First",
        "splits-all": "SplitsAll",
    }
    lines = [f"{name} = pdgate_broken:{kind}" for name, kind in points.items()]
    (info / "entry_points.txt").write_text("[pdgate.forwarders]\n" + "\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    yield
    sys.modules.pop("pdgate_broken", None)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("protocol", "fails", "may_fail"),
    [
        ("forgets", {"stop-strings"}, set()),
        ("talks", {"prefill-reads-only"}, set()),
        # A stream without all of its choices is no whole answer, and `release` asks for some.
        ("first", {"several-choices", "lists-of-prompts", "release"}, set()),
        # Choices and prompts of a list fetch the same blocks, and whether the first has let go of
        # them is a race.
        ("splits-all", {"release"}, {"several-choices", "lists-of-prompts"}),
        ("recomputes", {"verified-transfer", "release"}, set()),
    ],
)
def test_a_broken_forwarder_fails_what_it_breaks(
    protocol: str, fails: set[str], may_fail: set[str], pair: Pair, alone: Engine
) -> None:
    asked = (
        "same-tokens",
        "stop-strings",
        "verified-transfer",
        "prefill-reads-only",
        "several-choices",
        "lists-of-prompts",
        "release",
    )
    wanted = Wanted(
        protocol,
        prefills=(f"url={pair.prefill.url},kv={pair.prefill.kv}",),
        decodes=(pair.decode.url,),
        alone=alone.url,
        checks=asked,
        salt=protocol,
    )

    report = run(wanted)

    failed = {one.check.id for one in report.failed}
    assert fails <= failed <= fails | may_fail, "\n".join(map(str, report.results))


def test_engines_that_are_given_are_not_harmed(pair: Pair) -> None:
    wanted = Wanted(
        "vllm-nixl",
        prefills=(pair.prefill.url,),
        decodes=(pair.decode.url,),
        checks=("same-tokens", *HARMS),
        salt="given",
    )

    found = verdicts(run(wanted))

    assert found.pop("same-tokens") is Verdict.PASS
    assert set(found.values()) == {Verdict.NOT_APPLICABLE}


def test_a_gateway_that_is_given_is_used(fleet: Fleet, pair: Pair) -> None:
    instances = (f"role=prefill,url={pair.prefill.url}", f"role=decode,url={pair.decode.url}")
    flags = [word for one in instances for word in ("--instance", one)]
    with fleet.serve("--pdd-protocol", "vllm-nixl", *flags) as gateway:
        wanted = Wanted(
            "vllm-nixl",
            gateway=gateway.url,
            prefills=(pair.prefill.url,),
            decodes=(pair.decode.url,),
            checks=("order-of-legs", "request-ids"),
            salt="given with a gateway",
        )

        assert set(verdicts(run(wanted)).values()) == {Verdict.PASS}
        assert gateway.process.process.poll() is None
