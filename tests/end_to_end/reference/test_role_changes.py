"""Engines change their role under load, and no call fails: every answer is the same as before."""

from pathlib import Path

import pytest

from tests.end_to_end.reference.callers import Callers
from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet
from tests.support.etcd import EtcdServer

pytestmark = pytest.mark.slow

CALLERS, BETWEEN = 20, 6
"""At any time, and answers from one change to the next."""
TOKEN = "a-token-of-the-tests"
PROMPTS = tuple(f"{number} bottles of beer on the wall" for number in range(4))
TURNS = ("both", "decode", "both", "prefill", "decode", "prefill")
"""Every change that there is."""


def turn(engine: Engine, role: str) -> None:
    answer = HTTP.post(
        f"{engine.url}/admin/role",
        headers={"authorization": f"Bearer {TOKEN}"},
        json={"role": role},
    )
    assert (answer.status_code, answer.json()) == (200, {"role": role})


@pytest.mark.parametrize(
    ("protocol", "mode"),
    [
        ("vllm-nixl", "staged"),
        # test_churn.py has its engines come and go under the same load.
        pytest.param("vllm-kvt", "batch", marks=pytest.mark.matrix),
        ("vllm-mooncake", "batch"),
    ],
)
def test_no_call_fails_while_a_role_changes(
    own_fleet: Fleet, etcd: EtcdServer, tmp_path: Path, protocol: str, mode: str
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    flags = ("--etcd", etcd.endpoints[0], "--min-itl-ms", "10", "--admin-token-file", str(token))
    turning = own_fleet.engine("prefill", protocol, "tcp", *flags)
    for role in ("prefill", "decode"):
        own_fleet.engine(role, protocol, "tcp", *flags)
    # An engine says that it is ready just before it is listed.
    turning.process.wait_until(lambda: len(etcd.keys()) == 3 or None, "three entries")
    gateway_flags = ("--etcd", etcd.endpoints[0], "--pdd-protocol", protocol)
    with (
        own_fleet.serve(*gateway_flags, "--scheduling-mode", mode) as gateway,
        Callers(gateway, CALLERS, prompts=PROMPTS).asking() as callers,
    ):
        for role in TURNS:
            callers.wait_for(BETWEEN)
            turn(turning, role)
            assert len(etcd.keys()) == 3
        callers.wait_for(CALLERS)
