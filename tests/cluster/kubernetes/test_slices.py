"""What an EndpointSlice says of engines; and that nonsense in one harms no other."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.cluster.kubernetes.slices import Slice, read
from pdgate.cluster.member import DRAINING, Member
from pdgate.protocols.instance import Role
from pdgate.protocols.place import Place
from tests.support.kubernetes_objects import endpoint_slice, pod

DECODE = {"pdgate.dev/role": "decode"}
HERE = Place(host="node-1", zone="east-1a")


def members(said: dict[str, Any]) -> list[Member]:
    found = read(said)
    assert not found.refused
    return [endpoint.member for endpoint in found.endpoints]


def why(said: dict[str, Any]) -> str:
    """Why the only thing that was refused was."""
    found = read(said)
    assert not found.endpoints
    (reason,) = found.refused.values()
    return reason


def test_a_pod_of_a_labelled_service_is_an_engine() -> None:
    labels = {
        **DECODE,
        "pdgate.dev/protocol": "vllm-mooncake",
        "pdgate.dev/generation": "b",
        "pdgate.dev/model": "llama-3",
        "pdgate.dev/tp": "8",
        "pdgate.dev/dp-size": "2",
        "pdgate.dev/block-tokens": "16",
        "pdgate.dev/rack": "r7",
        "app.kubernetes.io/name": "vllm",
    }
    said = endpoint_slice("decode-x7", labels, [pod("10.0.0.2", "9f3c")])

    assert members(said) == [
        Member(
            Role.DECODE,
            "10.0.0.2",
            8000,
            protocol="vllm-mooncake",
            generation="b",
            model="llama-3",
            epoch="9f3c",
            tp=8,
            dp_size=2,
            block_tokens=16,
            place=Place("node-1", "r7", "east-1a"),
        )
    ]


def test_only_the_role_must_be_said() -> None:
    bare = {"addresses": ["10.0.0.2"], "conditions": {}}

    assert members(endpoint_slice("d-1", DECODE, [bare])) == [Member(Role.DECODE, "10.0.0.2", 8000)]


@pytest.mark.parametrize(
    ("conditions", "takes_calls"),
    [
        ({"ready": True}, True),
        ({"ready": None}, True),
        ({}, True),
        (None, True),
        ({"ready": False, "serving": False, "terminating": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        # Its Service publishes addresses that are not ready.
        ({"ready": True, "serving": True, "terminating": True}, False),
    ],
)
def test_who_is_not_ready_or_terminates_gets_no_calls(
    conditions: dict[str, bool | None] | None, takes_calls: bool
) -> None:
    (member,) = members(endpoint_slice("d-1", DECODE, [pod("10.0.0.2", conditions=conditions)]))

    assert member.takes_calls is takes_calls


def test_who_terminates_drains() -> None:
    """Then the roster drops it at once, also while the API server is away."""
    leaves = pod("10.0.0.2", conditions={"ready": False, "serving": True, "terminating": True})

    assert members(endpoint_slice("d-1", DECODE, [leaves]))[0].state == DRAINING


@pytest.mark.parametrize(
    ("ports", "labels", "url"),
    [
        ({"http": 8000}, {}, "http://10.0.0.2:8000"),
        ({"": 8000}, {}, "http://10.0.0.2:8000"),
        ({"web": 8000, "kv": 5600}, {}, "http://10.0.0.2:8000"),
        ({"metrics": 9090, "http": 8000}, {}, "http://10.0.0.2:8000"),
        ({"metrics": 9090, "https": 8443}, {}, "https://10.0.0.2:8443"),
        ({"http": 8000, "openai": 8001}, {"pdgate.dev/port": "openai"}, "http://10.0.0.2:8001"),
    ],
)
def test_the_api_is_at_the_port_of_that_name(
    ports: dict[str, int], labels: dict[str, str], url: str
) -> None:
    (member,) = members(endpoint_slice("d-1", DECODE | labels, [pod("10.0.0.2")], ports))

    assert member.url == url


def test_a_port_may_say_itself_that_it_speaks_tls() -> None:
    said = endpoint_slice("d-1", DECODE, [pod("10.0.0.2")], {"api": 8000})
    said["ports"][0]["appProtocol"] = "https"

    assert members(said)[0].url == "https://10.0.0.2:8000"


@pytest.mark.parametrize(
    ("ports", "labels", "kv"),
    [
        ({"http": 8000, "kv": 5600}, {}, "10.0.0.2:5600"),
        ({"http": 8000, "side": 5600}, {"pdgate.dev/kv-port": "side"}, "10.0.0.2:5600"),
        ({"http": 8000}, {"pdgate.dev/kv-port": "5600"}, "10.0.0.2:5600"),
        ({"http": 8000}, {}, ""),
    ],
)
def test_the_kv_side_has_a_port_of_its_own(
    ports: dict[str, int], labels: dict[str, str], kv: str
) -> None:
    (member,) = members(endpoint_slice("d-1", DECODE | labels, [pod("10.0.0.2")], ports))

    assert member.kv == kv


def test_an_ipv6_address_is_an_address() -> None:
    said = endpoint_slice(
        "d-1", DECODE, [pod("fd00::2")], {"http": 8000, "kv": 5600}, family="IPv6"
    )

    (member,) = members(said)

    assert (member.url, member.kv) == ("http://[fd00::2]:8000", "[fd00::2]:5600")


def test_of_several_addresses_the_first_counts() -> None:
    """They are names of one engine, and readers are told to take the first."""
    both = pod("10.0.0.2", addresses=["10.0.0.2", "10.0.0.3"])

    assert [each.host for each in members(endpoint_slice("d-1", DECODE, [both]))] == ["10.0.0.2"]


def test_a_service_without_pods_has_none() -> None:
    """Its slice has null for both lists."""
    assert read(endpoint_slice("d-1", DECODE, None, {})) == Slice("llm/d-1")


@pytest.mark.parametrize(
    ("labels", "ports", "reason"),
    [
        ({"pdgate.dev/role": "router"}, None, "no role is called 'router'"),
        ({"pdgate.dev/tp": "many"}, None, "'tp' is not a whole number"),
        ({"pdgate.dev/version": "2"}, None, "it is of version 2"),
        ({}, {"grpc": 1, "metrics": 2}, "none of its TCP ports is called http or https"),
        ({"pdgate.dev/port": "api"}, None, "none of its TCP ports is called api"),
        ({"pdgate.dev/kv-port": "kv"}, None, "none of its TCP ports is called kv"),
        ({"pdgate.dev/kv-port": "70000"}, None, "'70000' is not a port"),
    ],
)
def test_a_slice_that_cannot_be_used_says_why(
    labels: dict[str, str], ports: dict[str, int] | None, reason: str
) -> None:
    assert reason in why(endpoint_slice("d-1", DECODE | labels, [pod("10.0.0.2")], ports))


def test_ports_of_other_transports_do_not_count() -> None:
    said = endpoint_slice("d-1", DECODE, [pod("10.0.0.2")], {"http": 8000})
    said["ports"][0]["protocol"] = "UDP"

    assert "none of its TCP ports" in why(said)


def test_a_port_without_a_number_is_no_port() -> None:
    """To Kubernetes it means all of them."""
    said = endpoint_slice("d-1", DECODE, [pod("10.0.0.2")], {"http": 8000})
    said["ports"][0]["port"] = None

    assert "none of its TCP ports" in why(said)


def test_one_endpoint_that_is_nonsense_harms_no_other() -> None:
    odd: list[dict[str, Any]] = [
        {"conditions": {}},
        {"addresses": []},
        pod("10.0.0.2/admin"),
        pod("10.0.0.3", nodeName=7),
        pod("10.0.0.4", targetRef="me"),
    ]
    found = read(endpoint_slice("d-1", DECODE, [*odd, pod("10.0.0.9")]))

    assert [endpoint.member.host for endpoint in found.endpoints] == ["10.0.0.9"]
    assert list(found.refused) == [
        "llm/d-1 endpoint 0",
        "llm/d-1 endpoint 1",
        "llm/d-1 10.0.0.2/admin",
        "llm/d-1 10.0.0.3",
        "llm/d-1 10.0.0.4",
    ]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"metadata": None},
        {"metadata": []},
        {"metadata": {"name": "a", "labels": []}},
        {"metadata": {"name": "a"}, "endpoints": "none"},
        {"metadata": {"name": "a"}, "endpoints": [7]},
        {"metadata": {"name": "a"}, "ports": {}},
    ],
)
def test_what_is_no_slice_is_refused(said: dict[str, Any]) -> None:
    assert why(said)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
PLACES = [
    ("metadata",), ("metadata", "labels"), ("metadata", "name"), ("addressType",), ("ports",),
    ("ports", 0), ("ports", 0, "port"), ("ports", 0, "name"), ("endpoints",), ("endpoints", 0),
    ("endpoints", 0, "addresses"), ("endpoints", 0, "conditions"), ("endpoints", 0, "targetRef"),
    ("endpoints", 0, "targetRef", "uid"), ("endpoints", 0, "zone"),
    ("metadata", "labels", "pdgate.dev/role"), ("metadata", "labels", "pdgate.dev/tp"),
    ("metadata", "labels", "pdgate.dev/port"), ("metadata", "labels", "pdgate.dev/kv-port"),
]  # fmt: skip


@settings(max_examples=40)
@given(st.sampled_from(PLACES), anything)
def test_nothing_that_stands_anywhere_raises(path: tuple[str | int, ...], value: Any) -> None:
    said = endpoint_slice("d-1", DECODE, [pod("10.0.0.2", "uid")])
    at: Any = said
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value

    found = read(said)

    assert all(isinstance(endpoint.member, Member) for endpoint in found.endpoints)
