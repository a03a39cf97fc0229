"""Covering arrays: every two values meet in what is run, and `-m matrix` runs the whole product."""

import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.matrix import covering

ROOT = Path(__file__).parents[1]
LAYOUTS = "tests/transfer/messenger/test_layouts.py"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_every_two_values_meet(sizes: list[int]) -> None:
    cases = list(product(*map(range, sizes)))

    chosen = covering(cases)

    assert chosen <= set(cases)
    for one, other in combinations(range(len(sizes)), 2):
        met = {(case[one], case[other]) for case in chosen}
        assert met == set(product(range(sizes[one]), range(sizes[other])))
    assert {case[0] for case in chosen} == set(range(sizes[0]))


def test_it_is_as_small_as_can_be_where_one_more_is_a_latin_square() -> None:
    cases = list(product(range(4), repeat=3))

    assert len(covering(cases)) < 2 * 16
    assert covering(cases) == covering(cases)


@pytest.mark.source
@pytest.mark.parametrize(("flags", "count"), [((), 54), (("-m", "matrix"), 108)])
def test_the_whole_is_run_by_its_name(flags: tuple[str, ...], count: int) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *flags, LAYOUTS]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert said.count("::test_every_token_of_every_head_and_layer_arrives_once[") == count
