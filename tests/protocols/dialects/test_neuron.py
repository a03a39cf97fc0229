"""Ids that carry a peer's address are read as they were written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.protocols import request_id
from pdgate.protocols.dialects import neuron
from pdgate.protocols.instance import Instance, Role

uids = st.from_regex(r"[A-Za-z0-9._:@/+=~-]{1,20}", fullmatch=True)
hosts = st.ip_addresses(v=4).map(str) | st.from_regex(r"[a-z][a-z0-9.-]{0,12}", fullmatch=True)
ipv6 = st.ip_addresses(v=6).map(lambda address: f"[{address}]")
mapped = st.ip_addresses(v=4).map(lambda address: f"[::ffff:{address}]")


@given(
    uids.filter(lambda uid: not request_id.carries_address(uid)),
    hosts | ipv6 | mapped,
    st.integers(1, 65535),
    st.none() | st.integers(0, 99),
    st.sampled_from(["", "cmpl-", "chatcmpl-"]),
)
def test_a_peer_is_read_as_it_was_named(
    uid: str, host: str, port: int, index: int | None, prefix: str
) -> None:
    """Whatever id the client chose, and whatever vLLM put before and behind."""
    peer = Instance("d", f"http://{host}:{port}", Role.DECODE, "neuron")
    named = f"{prefix}{neuron.names_peer(uid, peer)}"
    suffix = "" if index is None else f"-{index}"

    found = neuron.parse(named + suffix)

    assert found == neuron.PeerId(f"{prefix}cmpl-{uid}", host.strip("[]"), port, index)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cmpl-u",
        "cmpl-u_10.0.0.1",
        "cmpl-u_10.0.0.1:0",
        "cmpl-u_10.0.0.1:65536",
        "cmpl-u_10.0.0.1:8000x",
        "cmpl-u_10.0.0.1:8000\n",
        "cmpl-u_10.0.0.1:8000-",
        "_10.0.0.1:8000",
        "cmpl-u_2001:db8::1:8000",
        f"cmpl-u_10.0.0.1:8000-{'9' * 5000}",
    ],
)
def test_what_names_no_peer_is_none(name: str) -> None:
    assert neuron.parse(name) is None
