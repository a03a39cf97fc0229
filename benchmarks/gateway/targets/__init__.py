"""The gateways that are measured, by name, in the order of the table."""

from collections.abc import Mapping
from typing import Final

from benchmarks.gateway.targets import (
    compiled,
    floor,
    litellm,
    nginx,
    pdgate,
    smg,
    toy,
    vllm_router,
)
from benchmarks.gateway.targets.base import Target

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        pdgate.ALL_ON,
        compiled.TARGET,
        pdgate.TWO,
        pdgate.DEFAULTS,
        pdgate.ASGI,
        pdgate.APPLICATION,
        vllm_router.TARGET,
        smg.TARGET,
        nginx.TARGET,
        floor.TARGET,
        toy.TARGET,
        litellm.TARGET,
    )
}

YARDSTICK: Final = vllm_router.TARGET.name
"""Ratios are over its figures."""
