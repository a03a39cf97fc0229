"""The load moves from answers to prompts, engines that can serve both follow, and no call fails."""

from collections import Counter
from pathlib import Path

import pytest

from tests.end_to_end.reference.callers import Callers
from tests.end_to_end.reference.fleet import HTTP, Fleet, Gateway

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-tests"
ENGINES, CALLERS = 3, 8
BLOCKS = 48
"""Of KV in each engine: one with all calls of the first half has none left, two have."""


def sides(gateway: Gateway) -> Counter[str]:
    """How many engines serve each; `turning` is one of the words."""
    return Counter(one["side"] for one in roles(gateway)["instances"])


def roles(gateway: Gateway) -> dict[str, list[dict[str, str]]]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    found: dict[str, list[dict[str, str]]] = HTTP.get(
        f"{gateway.url}/admin/roles", headers=headers
    ).json()
    return found


def test_roles_follow_the_load_and_no_call_fails(own_fleet: Fleet, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    flags = ("--no-prefix-cache", "--min-prefill-ms", "100", "--min-itl-ms", "20")
    engines = [
        own_fleet.engine("both", "vllm-nixl", "tcp", *flags, "--blocks", str(BLOCKS))
        for _ in range(ENGINES)
    ]
    instances = [word for one in engines for word in ("--instance", f"role=both,url={one.url}")]
    adaptive = ("--adaptive", "--adaptive-period", "0.3", "--adaptive-stay", "0.5")
    # Steps are far from the target, however busy the machine of the tests is.
    more = ("--tpot-target", "1", "--admin-token-file", str(token))
    often = ("--engine-metrics-interval", "0.2")
    with own_fleet.serve(*instances, *adaptive, *more, *often) as gateway:
        wait_until = gateway.process.wait_until

        with Callers(gateway, CALLERS, tokens=96).asking():
            wait_until(lambda: sides(gateway)["decode"] == 2 or None, "a second decode engine", 90)
        with Callers(gateway, CALLERS, tokens=2).asking() as callers:
            wait_until(
                lambda: sides(gateway)["prefill"] == 2 or None, "a second prefill engine", 90
            )
            callers.wait_for(CALLERS)

        decisions = [one for one in roles(gateway)["decisions"] if not one["first"]]
        assert {"prefill", "decode"} == {one["to"] for one in decisions}
        assert all("of its target" in one["reason"] for one in decisions)
