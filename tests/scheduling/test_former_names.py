"""Policies of others that were written before names changed work, and are warned of it."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from pdgate.scheduling import decision_trace, eligible, pipeline, policy_context
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.pipeline import scorers
from pdgate.scheduling.policy import Policy
from tests.support.fleets import fleet, prompt

# As the page had it that says how to add a policy.
PLUGIN = """
from pdgate.protocols.call import Call
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence import Best, Pick, Sentence
from pdgate.scheduling.sentence.words import fits, idleness
from pdgate.scheduling.surroundings import Surroundings


def sticky(around: Surroundings) -> Policy:
    return Sentence(
        keep=[fits],
        prefer=[(10.0, loyalty), (1.0, idleness)],
        choose=Best(around.random),
        near=0.1,
        prefixes=around.prefixes,
    )


def loyalty(call: Call, candidate: Candidate) -> float:
    return float(candidate.instance.id == "2")


class Last(Pick):
    def among(self, call, kept, score):
        return kept[-1]
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Installed while the test runs."""
    (tmp_path / "pdgate_former.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(DeprecationWarning, match=r"is pdgate\.scheduling"):
        found = import_module("pdgate_former")
    yield found
    sys.modules.pop("pdgate_former", None)


def test_a_policy_of_before_chooses(plugin: ModuleType) -> None:
    with pytest.warns(DeprecationWarning, match="Pipeline"):
        policy = plugin.sticky(policy_context.PolicyContext(random=Random(1)))

    assert isinstance(policy, Policy)
    assert policy.choose(prompt(10), fleet(4)).instance.id == "2"
    assert "loyalty 1.000 x 10" in policy.explain(prompt(10), fleet(4))[2].why


def test_a_picker_of_before_chooses(plugin: ModuleType) -> None:
    policy = pipeline.Pipeline(scorers=[(1.0, scorers.idleness)], picker=plugin.Last())

    assert policy.choose(prompt(10), fleet(4)).instance.id == "3"


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("candidate", "Candidate", Endpoint),
        ("instances", "Instances", Endpoints),
        ("lineup", "Lineup", eligible.EligibleSet),
        ("lineup", "lineup_of", eligible.eligible_of),
        ("surroundings", "Surroundings", policy_context.PolicyContext),
        ("surroundings", "Targets", policy_context.Targets),
        ("choice", "Choice", decision_trace.DecisionTrace),
        ("choice", "Weighed", decision_trace.Weighed),
        ("sentence", "PowerOfTwo", pipeline.PowerOfTwo),
        ("sentence", "Softmax", pipeline.Softmax),
        ("sentence.pick", "Best", pipeline.Best),
        ("sentence.times", "steps_quick", scorers.steps_quick),
        ("sentence.words", "TOKENS_PER_CALL", scorers.TOKENS_PER_CALL),
    ],
)
def test_a_former_name_is_what_is_named_so_now(module: str, name: str, now: object) -> None:
    with pytest.warns(DeprecationWarning, match=f"{module}.{name} is pdgate.scheduling"):
        assert getattr(import_module(f"pdgate.scheduling.{module}"), name) is now


def test_what_never_was_there_is_not_there_now() -> None:
    with pytest.raises(AttributeError, match=r"scheduling\.surroundings"):
        import_module("pdgate.scheduling.surroundings").Distance  # noqa: B018


def test_what_is_expected_of_an_engine_has_its_former_name() -> None:
    endpoint = fleet(1)[0]

    with pytest.warns(DeprecationWarning, match="latency"):
        assert endpoint.predicts is endpoint.latency
    assert isinstance(endpoint, Endpoint)
