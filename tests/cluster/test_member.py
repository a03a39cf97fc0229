"""What an entry says, and what strangers may not say."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.cluster.member import BadMember, Member, read
from pdgate.protocols.instance import Role
from pdgate.protocols.place import Place
from tests.cluster.watching import D, P

KEY = "/workers/decode/10.0.0.2/8200"


def said(**fields: Any) -> Member:
    return read(KEY, json.dumps(fields).encode())


@pytest.mark.parametrize(
    "member",
    [
        P,
        D,
        P.draining(),
        Member(Role.BOTH, "fd00::1", 80, "https"),
        Member(Role.PLAIN, "e-0.e", 1, place=Place("m", "r7", "east")),
    ],
    ids=str,
)
def test_what_is_written_is_read_again(member: Member) -> None:
    assert read(member.key, member.value()) == member


def test_the_entry_of_neuron_has_the_role_and_address_of_its_key() -> None:
    """Source: AWS Neuron's fork of vLLM, etcd value of its workers."""
    assert said(connections=[]) == Member(Role.DECODE, "10.0.0.2", 8200, protocol="neuron")


def test_unknown_fields_are_left_alone() -> None:
    assert said(model="m", colour="red", connections=None).model == "m"


def test_the_address_is_that_of_the_key_whatever_the_value_says() -> None:
    """Or whoever may write one entry could point the gateway anywhere."""
    member = said(host="evil.example", port=1, role="prefill", url="http://evil.example/x")

    assert (member.url, member.role) == ("http://10.0.0.2:8200", Role.DECODE)


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("/workers/prefill/::1/80", "http://[::1]:80"),
        ("/workers/prefill/[::1]/80", "http://[::1]:80"),
        ("/workers/prefill/FD00:0::1/80", "http://[fd00::1]:80"),
        ("/workers/plain/Engine-0.engines.svc/65535", "http://engine-0.engines.svc:65535"),
    ],
)
def test_hosts_have_one_spelling(key: str, url: str) -> None:
    assert read(key, b"{}").url == url


@pytest.mark.parametrize(
    "key",
    [
        "/workers/decode/10.0.0.2",
        "/workers/decode/10.0.0.2/8200/x",
        "/workers/boss/10.0.0.2/8200",
        "/other/decode/10.0.0.2/8200",
        "/workers/decode//8200",
        "/workers/decode/user@host/80",
        "/workers/decode/host?x/80",
        "/workers/decode/host#x/80",
        "/workers/decode/ho st/80",
        "/workers/decode/host\r\n/80",
        "/workers/decode/[10.0.0.2]/80",
        "/workers/decode/fe80::1%25eth0/80",
        "/workers/decode/:::/80",
        "/workers/decode/h/0",
        "/workers/decode/h/65536",
        "/workers/decode/h/+80",
        "/workers/decode/h/8_0",
        "/workers/decode/h/\u0661",
        f"/workers/decode/{'a' * 64}/80",
        f"/workers/decode/{'a.' * 130}a/80",
    ],
)
def test_what_is_no_role_host_and_port_is_refused(key: str) -> None:
    with pytest.raises(BadMember):
        read(key, b"{}")


@pytest.mark.parametrize(
    "fields",
    [
        {"scheme": "file"},
        {"scheme": ["http"]},
        {"kv": "10.0.0.2"},
        {"kv": "10.0.0.2:80/x"},
        {"kv": "::1:80"},
        {"kv": "user@host:80"},
        {"kv": 80},
        {"host": ["h"]},
        {"zone": 7},
        {"model": ["m"]},
        {"model": "m" * 513},
        {"model": "a\nb"},
        {"epoch": None},
        {"tp": 0},
        {"tp": True},
        {"tp": 2.5},
        {"tp": 1 << 40},
        {"dp_size": "2"},
        {"block_tokens": -1},
    ],
    ids=str,
)
def test_fields_of_the_wrong_kind_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadMember):
        said(**fields)


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"[]", b"null", b"[" * 60_000, b'{"model": "' + b"m" * (64 << 10)]
)
def test_values_that_are_no_small_object_are_refused(value: bytes) -> None:
    with pytest.raises(BadMember):
        read(KEY, value)


@given(st.text(), st.binary())
def test_nothing_but_a_refusal_comes_of_noise(key: str, value: bytes) -> None:
    for place in (key, f"/workers/{key}", f"/workers/decode/{key}/80", KEY):
        try:
            read(place, value)
        except BadMember:
            continue


def test_an_engine_is_on_the_host_of_its_address_unless_it_says_otherwise() -> None:
    assert said(rack="r7").instance().place == Place("10.0.0.2", "r7")
    assert said(host="machine-7").instance().place == Place("machine-7")


def test_the_instance_is_named_after_its_address_which_outlives_its_role() -> None:
    instance = P.instance()

    assert (instance.id, instance.url, instance.kv) == (
        "10.0.0.1:8100",
        "http://10.0.0.1:8100",
        "10.0.0.1:5600",
    )
