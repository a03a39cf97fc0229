"""Products of cases that are too many for each run: all of them are `make matrix`, and else a covering array is.

    @pytest.mark.matrix("backend", "row", "split")       of these parameters' product, as few cases as have each
                                                         value of one with each value of another
    pytest.param(..., marks=pytest.mark.matrix)          this case is only there in the whole

Most faults need one value, or two that meet: D. R. Kuhn, D. R. Wallace, A. M. Gallo, "Software Fault
Interactions and Implications for Software Testing", IEEE TSE 30(6), 2004.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import pytest

Case = tuple[int, ...]
MARK = "matrix"
CASE = "matrix case"
"""Property of a case in the report that `make matrix` makes its table of (tools/matrix_table.py)."""


def covering(cases: Sequence[Case]) -> set[Case]:
    """A few of the cases in which all pairs of values are that are in any; the same ones each time."""
    pairs = {case: _pairs(case) for case in cases}
    missing = set().union(*pairs.values())
    chosen: set[Case] = set()
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return chosen


def name_cases(items: Iterable[pytest.Item]) -> None:
    """Says in the report what each case of a product is made of: its id alone cannot be taken apart."""
    for item in items:
        mark = item.get_closest_marker(MARK)
        if mark is not None and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            params, ids = item.callspec.params, item.callspec._idlist
            # Where several parameters have one id, they are said as they are.
            values = ids if len(ids) == len(params) else map(str, params.values())
            said = dict(zip(params, values, strict=True))
            # First what the product is of.
            names = [*mark.args, *(name for name in said if name not in mark.args)]
            item.user_properties.append((CASE, json.dumps({name: said[name] for name in names})))


def _pairs(case: Case) -> set[tuple[tuple[int, int], ...]]:
    places = list(enumerate(case))
    return set(combinations(places, min(2, len(places))))


def left_to_the_whole(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The items that only `make matrix` runs."""
    left: set[pytest.Item] = set()
    products: dict[tuple[str, tuple[str, ...], Case], list[tuple[Case, pytest.Item]]]
    products = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker(MARK)
        if mark is None:
            continue
        if not mark.args:
            left.add(item)
            continue
        assert isinstance(item, pytest.Function), item
        # A value is one object in all the cases that have it.
        values = {name: id(value) for name, value in item.callspec.params.items()}
        case = tuple(values.pop(name) for name in mark.args)
        # Each value of what is not named has an array of its own.
        rest = tuple(value for _, value in sorted(values.items()))
        products[item.nodeid.partition("[")[0], mark.args, rest].append((case, item))
    for product in products.values():
        chosen = covering([case for case, _ in product])
        left.update(item for case, item in product if case not in chosen)
    return left
