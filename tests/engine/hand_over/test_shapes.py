"""Pages are read only where they fit."""

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from pdgate.engine.layout import Layout
from tests.support.engine_pair import D_BLOCKS, DIALECTS, Pair, prefill
from tests.support.fake_core import LAYOUT, FakeCore


@pytest.mark.parametrize("dialect", DIALECTS)
def test_pages_that_do_not_fit_are_refused_with_both_numbers(dialect: str, backend: str) -> None:
    with closing(Pair(dialect, backend)) as pair:
        wide = Layout(**{**_fields(LAYOUT), "head_dim": 16})
        with closing(
            FakeCore(backend, pair.protocol, "decode", layout=wide, peer=pair.d.peer)
        ) as d:
            pair.join(d)
            d.load(pair.to_decode(prefill(pair)), D_BLOCKS)

            error = d.result()
    assert error is not None
    assert "wrong layout: head_dim 8 here, 16 there" in error


@pytest.mark.parametrize("dialect", DIALECTS)
def test_another_model_is_refused(dialect: str, backend: str) -> None:
    with (
        closing(Pair(dialect, backend)) as pair,
        closing(FakeCore(backend, pair.protocol, "decode", model="m2", peer=pair.d.peer)) as d,
    ):
        pair.join(d)
        d.load(pair.to_decode(prefill(pair)), D_BLOCKS)

        error = d.result()
    assert error is not None
    assert "model tiny here, m2 there" in error


def _fields(layout: Layout) -> dict[str, Any]:
    return {name: getattr(layout, name) for name in Layout.__slots__}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_engines_may_have_different_numbers_of_blocks(dialect: str, backend: str) -> None:
    with closing(Pair(dialect, backend)) as pair:
        small = replace(LAYOUT, blocks=6)
        with closing(
            FakeCore(backend, pair.protocol, "decode", layout=small, peer=pair.d.peer)
        ) as d:
            pair.join(d)
            d.load(pair.to_decode(prefill(pair)), D_BLOCKS)

            assert d.result() is None
            assert d.holds(D_BLOCKS, seed=1)
