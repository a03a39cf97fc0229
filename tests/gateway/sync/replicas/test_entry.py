"""What replicas tell each other is understood, or refused with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.gateway.sync.replicas.entry import MOST, BadEntry, decode, encode, name_of
from pdgate.protocols.instance import Instance, Role

numbers = st.integers(0, MOST)


@given(st.text(), st.dictionaries(st.text(), st.tuples(numbers, numbers, numbers, numbers)))
def test_what_is_told_is_understood(
    gateway: str, load: dict[str, tuple[int, int, int, int]]
) -> None:
    entry = decode(encode(gateway, load))

    assert (entry.gateway, entry.load) == (gateway, load)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b'{"version": 1}',
        b'{"version": 1, "gateway": 7, "load": {}}',
        b'{"version": 1, "gateway": "g", "load": {"e": [1, 2, 3]}}',
        b'{"version": 1, "gateway": "g", "load": {"e": [1, 2, 3, -4]}}',
        b'{"version": 1, "gateway": "g", "load": {"e": [1, 2, 3, NaN]}}',
        b'{"version": 1, "gateway": "g", "load": {"e": [1e300, 2, 3, 4]}}',
        b'{"version": 2, "gateway": "g", "load": {"e": [1, 2, 3, 4, 5]}}',
        b'{"version": 1, "gateway": "g", "load": ' + b"[" * 100_000,
    ],
)
def test_what_is_of_no_use_is_refused(data: bytes) -> None:
    with pytest.raises(BadEntry):
        decode(data)


def test_a_newer_version_is_named() -> None:
    with pytest.raises(BadEntry, match="version 2"):
        decode(b'{"version": 2, "other": []}')


@given(st.binary())
def test_nothing_is_too_odd_to_be_refused(data: bytes) -> None:
    with pytest.raises(BadEntry):
        decode(data)


def test_an_engine_has_one_name_whatever_its_id_and_role() -> None:
    one = Instance("p0", "http://10.0.0.1:8100", Role.PREFILL, "vllm-nixl")
    same = Instance("other", "http://10.0.0.1:8100", Role.BOTH, "vllm-nixl")
    rank = Instance("p0", "http://10.0.0.1:8100", Role.PREFILL, "vllm-nixl", dp_rank=1)

    assert name_of(one) == name_of(same) != name_of(rank)
