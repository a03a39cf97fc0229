"""Calls wait in the gateway for targets that an operator has set, with the default policy."""

from typing import Any

import pytest

from pdgate.gateway.config import Settings
from pdgate.gateway.wiring.parts import limits_of

SET: dict[str, Any] = {"targets": {"ttft_seconds": 2.0}}


@pytest.mark.parametrize(
    "more",
    [{"targets": {}}, {"admission": {"prefill_seconds": 0}}, {"prefill_policy": "round_robin"}],
    ids=["no target", "at engines", "another policy"],
)
def test_calls_do_not_wait_for_what_nobody_asked_for(more: dict[str, Any]) -> None:
    assert not limits_of(Settings.model_validate({**SET, **more})).any


@pytest.mark.parametrize("more", [{}, {"ttft_seconds": 30.0}, {"decode_concurrency": 100}], ids=str)
def test_calls_wait_for_a_target_whatever_else_limits_them(more: dict[str, Any]) -> None:
    limits = limits_of(Settings.model_validate({**SET, "admission": more}))

    assert limits.prefill_seconds == pytest.approx(0.4)


def test_envoy_s_calls_do_not_wait_without_end() -> None:
    asked = {**SET, "epp": {"listen": "127.0.0.1:9002"}}

    assert not limits_of(Settings.model_validate(asked)).any
    bounded = limits_of(Settings.model_validate({**asked, "admission": {"wait_seconds": 0.1}}))
    assert bounded.prefill_seconds == pytest.approx(0.4)
    assert bounded.wait_seconds == 0.1


def test_calls_wait_for_the_target_that_is_set_alone() -> None:
    limits = limits_of(Settings.model_validate(SET))

    assert limits.prefill_seconds == pytest.approx(0.4)
    assert limits.step_seconds is None
