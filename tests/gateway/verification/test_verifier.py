"""Windows follow each other, complaints come once, and a restart begins anew."""

import logging
from dataclasses import replace

import pytest

from pdgate.gateway.engine_metrics.counters import EngineCounters
from pdgate.gateway.engine_metrics.page import MetricsPage
from pdgate.gateway.verification.causes import VerificationCause
from pdgate.gateway.verification.verifier import Tally, Verifier
from pdgate.gateway.verification.window import WindowResult
from pdgate.scheduling.endpoint import Endpoint
from tests.support.scripted import D0, P0, fleet


class Scene:
    """A pair; `decode` and `prefill` say what is new on the next page of each."""

    def __init__(self, **always: float) -> None:
        self.instances = fleet(P0, D0)
        self.verifier = Verifier(self.instances)
        self.block_tokens: dict[str, int] = {}
        zero = dict.fromkeys(("computed", "cached", "transferred", "first_tokens"), 0.0)
        self._counted = {"p0": zero | {"expired": 0.0, "read_late": 0.0}, "d0": zero | always}
        self.see("p0")
        self.see("d0")

    def endpoint(self, instance_id: str) -> Endpoint:
        found = self.instances.get(instance_id)
        assert found is not None
        return found

    def see(self, instance_id: str, **new: float) -> Tally | None:
        """The next page, on which these numbers have grown."""
        counted = self._counted[instance_id]
        for name, number in new.items():
            counted[name] = counted.get(name, 0.0) + number
        page = MetricsPage(
            EngineCounters(**counted), block_tokens=self.block_tokens.get(instance_id)
        )
        self.verifier.sees(self.endpoint(instance_id), page)
        return self.verifier.tallies.get(instance_id)

    def restart(self, instance_id: str, **counted: float) -> None:
        self._counted[instance_id] = dict.fromkeys(self._counted[instance_id], 0.0) | counted
        self.see(instance_id)

    def call(self, **new: float) -> Tally:
        """One that is handed over, and decode's page after it."""
        self.endpoint("d0").handed_over += 1
        tally = self.see("d0", first_tokens=1, **new)
        assert tally is not None
        return tally


def test_kv_that_comes_is_verified() -> None:
    tally = Scene(loads=0).call(computed=1, transferred=99, loads=1)

    assert (tally.last, tally.complaint) == (WindowResult.VERIFIED, None)
    assert tally.tokens == {
        WindowResult.VERIFIED: 100,
        WindowResult.RECOMPUTED: 0,
        WindowResult.UNVERIFIABLE: 0,
    }


def test_windows_follow_each_other() -> None:
    scene = Scene(loads=0)
    scene.call(computed=1, transferred=99)
    tally = scene.call(computed=1, transferred=49)

    assert tally.tokens[WindowResult.VERIFIED] == 150


@pytest.mark.parametrize(
    ("page", "new", "expired", "cause"),
    [
        ({}, {}, 0, VerificationCause.NO_CONNECTOR),
        ({"loads": 0.0}, {}, 0, VerificationCause.KV_IGNORED),
        ({"loads": 0.0, "loads_failed": 0.0}, {"loads_failed": 1}, 0, VerificationCause.LOADS_FAIL),
        (
            {"loads": 0.0, "loads_failed": 0.0},
            {"loads_failed": 1},
            1,
            VerificationCause.LEASES_EXPIRE,
        ),
        ({"loads": 0.0}, {"loads": 1, "transferred": 48}, 0, VerificationCause.KV_INCOMPLETE),
    ],
)
def test_the_likeliest_cause_is_named(
    page: dict[str, float], new: dict[str, float], expired: float, cause: VerificationCause
) -> None:
    scene = Scene(**page)
    scene.see("p0", expired=expired)

    assert scene.call(computed=100, **new).complaint is cause


def test_blocks_of_another_size_are_named() -> None:
    scene = Scene(loads=0)
    scene.block_tokens = {"p0": 16, "d0": 32}
    scene.see("p0")

    assert (
        scene.call(computed=100, loads_failed=1).complaint is VerificationCause.BLOCK_SIZE_DIFFERS
    )

    scene.block_tokens["d0"] = 16
    assert scene.call(computed=100, loads_failed=1).complaint is VerificationCause.LOADS_FAIL


def test_a_complaint_is_logged_once_per_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene(loads=0)

    for _ in range(2):
        scene.call(computed=100)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].getMessage().startswith("d0 computes prompts whose KV it was given")

    for _ in range(2):
        scene.call(computed=1, transferred=99)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_silence_neither_accuses_nor_absolves() -> None:
    scene = Scene(loads=0)
    scene.call(computed=100)

    tally = scene.see("d0")
    assert tally is not None
    assert (tally.last, tally.complaint) == (WindowResult.RECOMPUTED, VerificationCause.KV_IGNORED)


def test_a_page_that_comes_too_early_is_no_verdict() -> None:
    scene = Scene(loads=0)
    scene.endpoint("d0").handed_over += 1

    first = scene.see("d0")
    assert first is not None
    assert first.last is None

    second = scene.see("d0", first_tokens=1, computed=1, transferred=99)
    assert second is not None
    assert second.last is WindowResult.VERIFIED


def test_among_whole_calls_the_second_page_decides() -> None:
    scene = Scene(loads=0)
    scene.endpoint("d0").whole_calls += 1

    assert scene.call(computed=100).last is None
    tally = scene.see("d0")
    assert tally is not None
    assert tally.last is WindowResult.RECOMPUTED


def test_nothing_is_compared_across_a_restart() -> None:
    scene = Scene(loads=0)
    scene.call(computed=1, transferred=99)
    scene.endpoint("d0").handed_over += 1
    scene.restart("d0", computed=50.0)

    tally = scene.call(computed=1, transferred=49)
    assert tally.tokens == {
        WindowResult.VERIFIED: 150,
        WindowResult.RECOMPUTED: 0,
        WindowResult.UNVERIFIABLE: 0,
    }


def test_another_engine_by_the_same_name_begins_anew() -> None:
    scene = Scene(loads=0)
    scene.call(computed=1, transferred=99)
    scene.instances.put(replace(D0, url="http://10.0.9.9:8200"))

    tally = scene.call(computed=50, transferred=50)

    assert tally.tokens == {
        WindowResult.VERIFIED: 100,
        WindowResult.RECOMPUTED: 0,
        WindowResult.UNVERIFIABLE: 0,
    }


def test_an_engine_that_was_taken_out_and_put_back_begins_anew() -> None:
    scene = Scene(loads=0)
    for _ in range(2):
        scene.call(computed=1, transferred=99)
    scene.instances.remove("d0")
    scene.instances.put(D0)

    tally = scene.call(computed=50, transferred=50)
    assert tally.tokens[WindowResult.VERIFIED] == 200
    assert scene.call(computed=1, transferred=99).tokens[WindowResult.VERIFIED] == 300


def test_leases_are_counted_at_prefill() -> None:
    tally = Scene().see("p0", expired=2, first_tokens=2)

    assert tally is not None
    assert (tally.expired, tally.complaint) == (2, None)


def test_a_late_read_is_wrong_until_calls_go_well_without() -> None:
    scene = Scene()

    for new, complaint in (
        ({"read_late": 1.0}, VerificationCause.READ_LATE),
        ({}, VerificationCause.READ_LATE),
        ({"first_tokens": 1.0}, None),
    ):
        tally = scene.see("p0", **new)
        assert tally is not None
        assert tally.complaint is complaint


def test_nothing_is_kept_of_engines_that_are_gone() -> None:
    scene = Scene(loads=0)
    scene.call(computed=1, transferred=99)

    scene.instances.remove("d0")
    scene.see("p0")

    assert scene.verifier.tallies.keys() == {"p0"}
