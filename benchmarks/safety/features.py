"""What makes calls safe, and how the gateway is put together without it.

Some of it users can switch off: a setting says so. The rest is always on, and is left out here by
parts of `without.py` in the places of the gateway's own.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

from benchmarks.guard.gateway import SETTINGS
from benchmarks.safety import without
from pdgate.forwarders import execution
from pdgate.gateway.config import Settings
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.wiring import parts
from pdgate.protocols import openai

# The package has a function of this name.
build = import_module("pdgate.gateway.wiring.build")

Place = tuple[ModuleType, str]
"""A module, and the name of a part in it."""


@dataclass(frozen=True, slots=True)
class Feature:
    """
    Attributes:
        does: For readers.
        settings: Key -> its value where the feature is off.
        parts: Place -> what stands there where it is off.
        protocol: Of clients' connections, where it is off; None for the gateway's own.
    """

    name: str
    does: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[Place, Any] = field(default_factory=dict)
    protocol: type[HotProtocol] | None = None


FEATURES: Final = (
    Feature(
        "keys",
        "an API key, how often and how much at once its holder may ask",
        # Without keys a client's own would go to the engines, and cost something there.
        settings={"api_keys": [], "client_authorization": "drop"},
    ),
    Feature(
        "admission",
        "calls wait for room at engines",
        settings={"admission": {"prefill_concurrency": None, "decode_concurrency": None}},
    ),
    Feature("total", "a limit of the whole call", settings={"timeouts": {"total_seconds": None}}),
    Feature(
        "silence",
        "limits for engines that say nothing, and pings to clients meanwhile",
        settings={"timeouts": {"ping_seconds": 0}},
        parts={(parts, "timeouts_of"): without.no_limits},
    ),
    Feature("ownership", "who holds the KV", parts={(parts, "ways"): without.unowned}),
    Feature(
        "start",
        "an answer is held until its beginning is good",
        parts={
            (execution, "good_start"): without.any_start,
            (openai, "begins_well"): without.any_events,
            (execution, "good_whole"): without.any_whole,
            (execution, "WHOLE_BYTES"): 0,
        },
    ),
    Feature(
        "retries",
        "other engines after a failure, whose fault it was, and breakers",
        parts={
            (parts, "Execution"): without.OneAttempt,
            (build, "Endpoints"): without.NeverDoubted,
        },
    ),
    Feature(
        "requests",
        "headers pass by a list, and fields that are not a client's are refused",
        settings={"trust_client_kv_params": True},
        parts={(parts, "Intake"): without.Unread},
    ),
    Feature("heads", "bounds for a request's head", protocol=without.Unbounded),
    Feature("call stats", "what is counted", parts={(build, "CallStats"): without.NoCallStats}),
    Feature(
        "choice",
        "a policy chooses between two engines of each side",
        settings={
            "instances": [
                found
                for found in SETTINGS.model_dump(exclude_unset=True)["instances"]
                if found["url"].endswith(("1", "3"))
            ]
        },
    ),
)

NAMES: Final = tuple(feature.name for feature in FEATURES)
ALL, NONE = "all", "none"
"""Features that are on."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A gateway without some features."""

    settings: Settings
    parts: Mapping[Place, Any]
    protocol: type[HotProtocol]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A gateway that is built and serves inside the block is this one."""
        with ExitStack() as stack:
            for (module, name), part in self.parts.items():
                stack.enter_context(patch.object(module, name, part))
            yield


def variant(name: str) -> Variant:
    """ALL, NONE, or all but the feature of that name."""
    off = [f for f in FEATURES if name in (NONE, f.name)]
    settings = reduce(_merged, (f.settings for f in off), SETTINGS.model_dump(exclude_unset=True))
    replaced = {place: part for f in off for place, part in f.parts.items()}
    protocol = next((f.protocol for f in off if f.protocol), HotProtocol)
    return Variant(Settings.model_validate(settings), replaced, protocol)


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A section keeps what is not changed of it."""
    found = dict(settings)
    for key, value in changes.items():
        found[key] = {**found[key], **value} if isinstance(value, Mapping) else value
    return found
