"""KV that several ranks hold alike, as with MLA or more ranks than heads: any of them may send.

Which one is drawn anew for each transfer, so that all their network cards have work; D needs
not know, and no two ranks have to talk about it.
"""

from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from pdgate.transfer.base import Descriptor
from pdgate.transfer.messenger import shards
from pdgate.transfer.messenger.mover import Destination, Mover
from pdgate.transfer.plan.count import Rhythm
from tests.support.kv_layouts import PLAIN
from tests.transfer.messenger.nodes import SECONDS, Node, shape_of

LATENT = replace(PLAIN, kv_heads=1, planes=1, tp=8)
ONE = replace(LATENT, tp=1)
TOKENS = range(10)


def senders(key: str) -> set[int]:
    return {pair.link.source.tp for pair in shards.pairs(shape_of(LATENT), shape_of(ONE), key)}


def test_every_copy_sends_its_part_of_the_transfers() -> None:
    drawn = Counter(sender for n in range(800) for sender in senders(f"call-{n}"))

    assert set(drawn) == set(range(8))
    assert drawn.total() == 800
    # Five standard deviations: the keys are fixed, so this never fails by chance.
    assert all(abs(count - 100) < 5 * 9.4 for count in drawn.values())


def test_the_count_does_not_depend_on_who_sends() -> None:
    beat = Rhythm(4, by_layer=True)

    one = shape_of(ONE)
    for key in ("a", "b"):
        moving = shards.pairs(shape_of(LATENT), one, key)
        assert shards.counts(moving, one, TOKENS, beat) == {0: PLAIN.layers * 3}


class Watched(Mover):
    """Says by whom it was opened."""

    def __init__(self, mover: Mover, number: int, used: set[int]) -> None:
        self._mover = mover
        self._number = number
        self._used = used

    def open(self, remote: Descriptor, line: int) -> Destination:
        self._used.add(self._number)
        return self._mover.open(remote, line)

    def close(self) -> None:
        self._mover.close()


@pytest.mark.parametrize("mode", [{"push": False}, {}], ids=["pull", "push"])
def test_whoever_is_drawn_the_bytes_are_right(backend: str, mode: dict[str, Any]) -> None:
    """One call after the other, until every copy has sent."""
    with closing(Node(backend, LATENT)) as prefill, closing(Node(backend, ONE)) as decode:
        used: set[int] = set()
        prefill.movers[:] = [
            Watched(mover, number, used) for number, mover in enumerate(prefill.movers)
        ]
        wanted: set[int] = set()
        for n in range(40):
            key = f"call-{n}"
            wanted |= senders(key)
            content = prefill.expect(key, TOKENS.stop)
            prefill.kept(key, TOKENS.stop)
            decode.load(key, prefill.port, TOKENS.stop, **mode)
            assert decode.result() is None
            assert decode.has(key, content)
            assert prefill.freed.get(timeout=SECONDS) == key
            decode.give_back(key)

        assert wanted == set(range(8))
        if mode.get("push", True):
            assert used == wanted
