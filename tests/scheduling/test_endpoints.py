"""Who can serve a model now."""

from dataclasses import replace

import pytest

from pdgate.protocols.errors import BadRequest, NoInstance, UnknownModel
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.reservation import Reservation
from tests.support.scripted import D0, D1, P0, P1, fleet

BOTH = Instance("b0", "http://b0", Role.BOTH, "vllm-nixl")
PLAIN = Instance("s0", "http://s0", Role.PLAIN, "plain")


def ids(endpoints: Endpoints, role: Role, model: str | None = "m") -> list[str]:
    return [c.instance.id for c in endpoints.eligible(model).up[role]]


def other_protocol(record: Instance) -> Instance:
    return replace(record, id=f"{record.id}-sglang", protocol="sglang")


def test_those_that_are_up_serve_in_their_roles() -> None:
    endpoints = fleet(P0, P1, D0, PLAIN)
    endpoints.mark_down("p1")

    assert ids(endpoints, Role.PREFILL) == ["p0"]
    assert ids(endpoints, Role.DECODE) == ["d0"]
    assert ids(endpoints, Role.PLAIN) == ["s0"]


def test_an_instance_is_down_until_it_is_seen() -> None:
    endpoints = Endpoints([P0, D0])
    endpoints.mark_up("p0", ["m"])

    assert ids(endpoints, Role.PREFILL) == ["p0"]
    assert not endpoints.eligible("m").disaggregated


def test_an_unknown_model_does_not_exist() -> None:
    with pytest.raises(UnknownModel, match="'other' does not exist") as caught:
        fleet(P0, D0).eligible("other")

    assert (caught.value.status, caught.value.param) == (404, "model")


def test_before_any_model_is_known_there_is_nobody_yet() -> None:
    """A 404 would tell clients to give up on a model that comes up in a moment."""
    for model in ("m", None):
        with pytest.raises(NoInstance, match="yet") as caught:
            Endpoints([P0, D0]).eligible(model)
        assert caught.value.retry_after_seconds


def test_a_model_whose_engines_are_down_still_exists() -> None:
    endpoints = fleet(P0, D0)
    endpoints.mark_down("p0")
    endpoints.mark_down("d0")

    assert ids(endpoints, Role.PREFILL) == ids(endpoints, Role.DECODE) == []
    assert ids(endpoints, Role.PREFILL, None) == []


def test_a_configured_model_exists_before_its_engine_was_ever_up() -> None:
    endpoints = Endpoints([P0, D0, replace(P1, model="late")])
    endpoints.mark_up("p0", ["m"])

    assert ids(endpoints, Role.PREFILL, "late") == []


def test_the_only_model_need_not_be_named() -> None:
    assert ids(fleet(P0, D0), Role.PREFILL, None) == ["p0"]


def test_one_of_several_models_must_be_named() -> None:
    endpoints = fleet(P0, D0)
    endpoints.mark_up("d0", ["m", "adapter"])

    with pytest.raises(BadRequest, match="must name a model") as caught:
        endpoints.eligible(None)

    assert caught.value.param == "model"


def test_a_second_model_must_be_named_also_by_who_has_asked_before() -> None:
    endpoints = fleet(P0, D0)
    assert endpoints.eligible(None) is endpoints.eligible("m")
    endpoints.mark_up("d0", ["m", "adapter"])

    with pytest.raises(BadRequest, match="must name a model"):
        endpoints.eligible(None)


def test_each_model_has_its_own_engines() -> None:
    endpoints = fleet(P0, P1, D0)
    endpoints.mark_up("p1", ["m", "adapter"])
    endpoints.mark_up("d0", ["m", "adapter"])

    assert ids(endpoints, Role.PREFILL) == ["p0", "p1"]
    assert ids(endpoints, Role.PREFILL, "adapter") == ["p1"]


def test_only_the_protocol_that_has_a_pair_serves() -> None:
    endpoints = fleet(P0, D0, other_protocol(P1))

    assert ids(endpoints, Role.PREFILL) == ["p0"]
    assert not endpoints.eligible("m").mixed


def test_several_protocols_serve_side_by_side() -> None:
    eligible = fleet(P0, D0, other_protocol(P0), other_protocol(D0)).eligible("m")

    assert eligible.disaggregated
    assert eligible.mixed


def test_engines_of_different_protocols_are_no_pair() -> None:
    """Decode would get fields that it does not know, and compute something else."""
    assert not fleet(P0, other_protocol(D0)).eligible("m").disaggregated


def test_one_engine_is_no_pair_with_itself() -> None:
    assert not fleet(BOTH).eligible("m").disaggregated


def test_two_engines_of_both_roles_are_a_pair() -> None:
    endpoints = fleet(BOTH, replace(BOTH, id="b1"))

    assert endpoints.eligible("m").disaggregated
    assert ids(endpoints, Role.PREFILL) == ids(endpoints, Role.DECODE) == ["b0", "b1"]


def test_who_would_leave_no_decode_does_not_prefill() -> None:
    """Were the only decode engine chosen to prefill, nobody could go on."""
    endpoints = fleet(P0, BOTH)

    assert ids(endpoints, Role.PREFILL) == ["p0"]
    assert ids(endpoints, Role.DECODE) == ["b0"]


def test_a_changed_record_keeps_its_account() -> None:
    """Engine ids change with every restart; calls in flight are still there."""
    endpoints = fleet(P0, D0)
    before = endpoints.get("p0")
    assert before is not None
    before.calls = 3

    after = endpoints.put(replace(P0, engine_ids=((0, "new"),)))

    assert after is before
    assert (after.calls, after.up, after.instance.engine_ids) == (3, True, ((0, "new"),))
    assert ids(endpoints, Role.PREFILL) == ["p0"]


def test_a_removed_instance_serves_no_more() -> None:
    endpoints = fleet(P0, P1, D0)
    assert ids(endpoints, Role.PREFILL) == ["p0", "p1"]

    endpoints.remove("p1")
    endpoints.remove("p1")
    endpoints.mark_up("p1", ["m"])
    endpoints.mark_down("p1")

    assert ids(endpoints, Role.PREFILL) == ["p0"]
    assert endpoints.get("p1") is None


def test_a_removed_instance_is_known_to_be_leaving_until_its_calls_have_ended() -> None:
    found = fleet(P0, D0, D1)
    old = found.get("d1")
    assert old is not None
    with Reservation(old, 10, reads=False):
        found.remove("d1")
        assert found.eligible("m").leaving == [old]

        # It is the same engine, with another record: what runs there takes its own places.
        found.put(replace(D1, id="d2"))
        assert not found.eligible("m").leaving
        found.remove("d2")
        assert found.eligible("m").leaving == [old]

    found.mark_down("d0")
    assert not found.eligible("m").leaving
    assert not found.removed


def test_roles_that_nobody_is_up_for_are_named() -> None:
    endpoints = fleet(P0, D0, D1, PLAIN)
    endpoints.mark_down("p0")
    endpoints.mark_down("d0")
    endpoints.mark_down("s0")

    assert endpoints.missing_roles() == [("vllm-nixl", "prefill"), ("plain", "plain")]


def test_roles_that_nobody_announced_are_named() -> None:
    assert Endpoints([P0, other_protocol(D0), PLAIN]).unpaired_roles() == [
        ("vllm-nixl", "decode"),
        ("sglang", "prefill"),
    ]
    assert Endpoints([P0, BOTH]).unpaired_roles() == []
