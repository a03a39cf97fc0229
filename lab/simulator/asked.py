"""Meaning of the flags. Whatever cannot be is a `BadSimulatorFlag`, a sentence for the operator."""

import re
import tomllib
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from pdgate.lab.simulator.fleet import Outage, roles_of
from pdgate.lab.simulator.hardware import PRESETS, Hardware
from pdgate.lab.simulator.synthetic import SHAPES, conversations
from pdgate.lab.simulator.trace import TraceCall, copied, in_batches, read
from pdgate.protocols.instance import Role
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.disaggregation import Always, Auto, Never, SplitRule, UncachedTokensAbove
from pdgate.scheduling.policy import DEFAULT, load
from pdgate.scheduling.policy_context import PolicyContext, Targets

Shape = Literal["conversations", "agents", "chats", "documents", "bursts"]
Split = Literal["always", "never", "uncached_tokens_above", "auto"]

SYNTHETIC_CALLS: Final = 2000
SYNTHETIC_PER_SECOND: Final = 3.4
"""As in the hour of conversations that trace.py names."""


class BadSimulatorFlag(ValueError):
    pass


def calls_of(
    trace: Path | None,
    calls: int | None,
    copies: int,
    seed: int,
    shape: str,
    batch_share: float = 0.0,
) -> list[TraceCall]:
    """The calls at their own pace, those of the trace or made up. Raises BadTrace, BadSimulatorFlag."""
    if trace is None:
        asks = conversations(
            calls or SYNTHETIC_CALLS, SYNTHETIC_PER_SECOND, Random(seed), SHAPES[shape]
        )
    else:
        asks = read(trace)[:calls]
    asks = copied(asks, copies, Random(seed))
    return in_batches(asks, batch_share, Random(seed)) if batch_share else asks


def hardware_of(name: str, speed: float) -> Hardware:
    """A preset's name, or a TOML file with the fields of `Hardware`."""
    if not 0 < speed < float("inf"):
        raise BadSimulatorFlag("--engine-speed must be a number above 0")
    found = PRESETS.get(name)
    return (found or _read_hardware(Path(name))).times_as_fast(speed)


def _read_hardware(path: Path) -> Hardware:
    known = {field.name for field in fields(Hardware)}
    try:
        told = tomllib.loads(path.read_text())
    except OSError:
        presets = ", ".join(PRESETS)
        raise BadSimulatorFlag(f"--engine: {path} is neither one of {presets} nor a file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSimulatorFlag(f"--engine: {path} is no TOML: {error}") from None
    for name in sorted(known ^ told.keys()):
        raise BadSimulatorFlag(
            f"--engine: {path} {'lacks' if name in known else 'has an unknown'} {name}"
        )
    for name, value in told.items():
        if type(value) not in (int, float):
            raise BadSimulatorFlag(f"--engine: {name} in {path} is no number")
    try:
        return Hardware(**told)
    except ValueError as error:
        raise BadSimulatorFlag(f"--engine: {path}: {error}") from None


def with_figures(hardware: Hardware, texts: Sequence[str]) -> Hardware:
    """`kv_tokens=200000`: that figure of it is another one."""
    known = {field.name: field.type for field in fields(Hardware)}
    for text in texts:
        name, _, number = text.partition("=")
        kind = known.get(name)
        if kind is None:
            raise BadSimulatorFlag(f"--engine-figure {text}: there are {', '.join(known)}")
        try:
            figure: Any = int(number) if kind is int else float(number)
        except ValueError:
            whole = "whole number" if kind is int else "number"
            raise BadSimulatorFlag(f"--engine-figure {text}: it takes a {whole}") from None
        try:
            hardware = replace(hardware, **{name: figure})
        except ValueError as error:
            raise BadSimulatorFlag(f"--engine-figure {text}: {error}") from None
    return hardware


def policies_of(
    both: str, prefill: str | None, decode: str | None, compare: str | None
) -> list[tuple[str, str]]:
    """Those of (prefill, decode). `compare` is `a,b+c`: a for both; b for one, c for the other."""
    if compare is None:
        pairs = [(prefill or both, decode or both)]
    elif prefill or decode:
        raise BadSimulatorFlag("--compare names the policies of both roles, so give no other")
    else:
        names = [name.strip().partition("+") for name in compare.split(",")]
        pairs = [(first, second or first) for first, _, second in names]
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        try:
            load(name, PolicyContext())
        except (LookupError, TypeError) as error:
            # Not str(): a KeyError would put its sentence into quotes.
            raise BadSimulatorFlag(error.args[0]) from None
    return pairs


def targets_of(ttft_seconds: float, tpot_seconds: float) -> Targets:
    if not min(ttft_seconds, tpot_seconds) > 0:
        raise BadSimulatorFlag("targets must be above 0 seconds")
    return Targets(ttft_seconds, tpot_seconds)


def limits_of(
    prefill_concurrency: int | None,
    decode_concurrency: int | None,
    prefill_queue: float | None,
    late_share: float,
    max_wait: float | None,
    targets: Targets,
    give_way: int = 0,
) -> Callable[[str], Limits]:
    """Limits of a prefill policy: with the default one calls wait for the targets, as where an operator has set them."""
    if prefill_queue is not None and not prefill_queue < float("inf"):
        raise BadSimulatorFlag("--prefill-queue must be a number of seconds, 0 for none")
    if max_wait is not None and not 0 < max_wait < float("inf"):
        raise BadSimulatorFlag("--max-wait must be a number of seconds above 0")
    asked = {
        "prefill_concurrency": prefill_concurrency,
        "decode_concurrency": decode_concurrency,
        "prefill_seconds": prefill_queue,
        "wait_seconds": max_wait,
    }
    given = {key: value for key, value in asked.items() if value is not None}
    given |= {"late_share": late_share, "give_way": give_way}
    return lambda policy: Limits.of(given, targets, targets if policy == DEFAULT else None)


def numbers_of(flag: str, text: str) -> list[float]:
    """`1,1.5,2`: all above 0."""
    try:
        numbers = [float(one) for one in text.split(",")]
    except ValueError:
        raise BadSimulatorFlag(f"{flag} needs numbers, between commas, not {text!r}") from None
    if not all(0 < number < float("inf") for number in numbers):
        raise BadSimulatorFlag(f"{flag} needs numbers above 0")
    return numbers


def engines_of(prefills: int, decodes: int, both: int, encoders: int = 0) -> dict[str, Role]:
    roles = roles_of(prefills, decodes, both, encoders)
    if not (prefills + both and decodes + both and len(roles) - encoders > 1):
        raise BadSimulatorFlag(
            "it takes a prefill engine and a decode engine, or two that do --both"
        )
    return roles


def outages_of(texts: Sequence[str], engines: Collection[str]) -> list[Outage]:
    """`p0@600-900`: that engine is gone from 600 s to 900 s; `p0@600`: for good."""
    outages = []
    for text in texts:
        found = re.fullmatch(r"([pdbe]\d+)@(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?", text)
        if found is None:
            raise BadSimulatorFlag(f"--kill needs something like p0@600-900, not {text!r}")
        begins, ends = float(found[2]), float(found[3]) if found[3] else None
        if ends is not None and ends <= begins:
            raise BadSimulatorFlag(f"--kill {text}: it ends before it begins")
        if found[1] not in engines:
            raise BadSimulatorFlag(f"--kill {text}: there is no engine {found[1]}")
        outages.append(Outage(found[1], begins, ends))
    return outages


def rule_of(split: Split, uncached_tokens: int) -> Callable[[], SplitRule]:
    thresholds = partial(UncachedTokensAbove, uncached_tokens)
    match split:
        case "always":
            return Always
        case "never":
            return Never
        case "uncached_tokens_above":
            return thresholds
        case "auto":
            return partial(_auto, thresholds)


def _auto(thresholds: Callable[[], UncachedTokensAbove]) -> SplitRule:
    return Auto(thresholds())
