"""Ids that nobody else has, and names that nobody can dial."""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from pdgate.protocols import request_id
from pdgate.protocols.dialects import neuron
from pdgate.protocols.instance import Instance, Role


def test_new_ids_differ() -> None:
    assert len({request_id.new() for _ in range(1000)}) == 1000


def test_an_id_tells_nothing_of_the_next_one() -> None:
    """KV is asked for by such an id: 128 random bits, none of them kept from one to the next."""
    ids = [int(request_id.new(), 16) for _ in range(1000)]

    assert max(ids).bit_length() > 118
    for bit in range(128):
        assert 350 < sum(one >> bit & 1 for one in ids) < 650, bit
        changed = sum((a ^ b) >> bit & 1 for a, b in pairwise(ids))
        assert 350 < changed < 650, bit


def test_ids_of_threads_differ() -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: request_id.new(), range(5000)))

    assert len(set(made)) == 5000


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_forked_processes_make_different_ids() -> None:
    """Their counters start alike; a reused transfer id gives wrong tokens."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, request_id.new().encode())
        os._exit(0)
    os.waitpid(child, 0)
    with open(reader) as pipe:
        os.close(writer)
        theirs = pipe.read()

    ours = request_id.new()

    assert len(theirs) == len(ours)
    assert theirs[:12] != ours[:12]


def test_attempts_of_one_name_differ() -> None:
    """Two calls of one name would meet in one engine, each reading the other's cache."""
    one, other = request_id.attempt("mine"), request_id.attempt("mine")

    assert one != other
    assert one.startswith("mine-")


@pytest.mark.parametrize("name", ["a", "req_1", "7f0c-11ee", "a.b/c:d@e+f=~", "x" * 128])
def test_ordinary_names_are_usable(name: str) -> None:
    assert request_id.usable(name)
    assert request_id.usable(request_id.new())


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "a\n", "a\r\nx: y", "é", "[::1]", 'a"b'])
def test_names_that_could_break_a_header_or_json_are_not(name: str) -> None:
    assert not request_id.usable(name)


@pytest.mark.parametrize(
    "name",
    [
        "cmpl-1_10.0.0.1:8000",
        "x_evil.example:80-0",
        "x_[2001:db8::1]:9",
        "___prefill_addr_10.0.0.1:8100___decode_addr_10.0.0.2:8200_1",
        "http://10.0.0.1",
    ],
)
def test_names_that_an_engine_would_dial_are_seen(name: str) -> None:
    assert request_id.carries_address(name)


@pytest.mark.parametrize("name", ["a", "user_17", "2026-01-01T00:00:00", "a:b", "trace_a:b", "_:1"])
def test_ordinary_names_carry_no_address(name: str) -> None:
    assert not request_id.carries_address(name)


@pytest.mark.parametrize("host", ["[::1]", "[::ffff:10.0.0.1]", "[fe80::1%eth0]", "10.0.0.1", "d"])
def test_whatever_neuron_reads_an_address_from_is_seen(host: str) -> None:
    peer = Instance("d", f"http://{host}:8000", Role.DECODE, "neuron")

    assert request_id.carries_address(neuron.names_peer("u", peer))
    assert request_id.carries_address(neuron.names_peer("u", peer) + "-0")
