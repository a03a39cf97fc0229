"""A plugin's own picker of a pipeline, where ours are compiled as well."""

from collections.abc import Sequence
from random import Random

import pytest

from pdgate.protocols.call import Call
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.pipeline import Best, Picker, Pipeline, PowerOfTwo, Softmax
from pdgate.scheduling.pipeline.scorers import Score
from tests.support.fleets import fleet, prompt


class Last(Picker):
    """Of all, whatever they score."""

    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        return kept[-1]


class Worst(Best):
    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        return super().among(call, kept, lambda call, one: -score(call, one))


class WorstOfTwo(PowerOfTwo):
    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        return super().among(call, kept, lambda call, one: -score(call, one))


class Upside(Softmax):
    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        return super().among(call, kept, lambda call, one: -score(call, one))


def is_second(_: Call, endpoint: Endpoint) -> float:
    return float(endpoint.instance.id == "1")


@pytest.mark.parametrize(
    ("pick", "chosen"),
    [
        pytest.param(Last(Random(1)), "1", id="Picker"),
        pytest.param(Worst(Random(1)), "0", id="Best"),
        pytest.param(WorstOfTwo(Random(1)), "0", id="PowerOfTwo"),
        pytest.param(Upside(0.001, Random(1)), "0", id="Softmax"),
    ],
)
def test_a_class_of_a_plugin_chooses(pick: Picker, chosen: str) -> None:
    pipeline = Pipeline(filters=[], scorers=[(1.0, is_second)], picker=pick)

    assert pipeline.choose(prompt(10), fleet(2)).instance.id == chosen
