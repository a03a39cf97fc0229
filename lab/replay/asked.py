"""Meaning of the flags. Whatever cannot be is a `BadReplayFlag`, a sentence for the operator."""

from pathlib import Path

from pdgate.lab.replay.connection import ReplayServer
from pdgate.lab.simulator.trace import TraceCall, faster, read
from pdgate.scheduling.policy_context import Targets


class BadReplayFlag(ValueError):
    pass


def calls_of(
    trace: Path, scale: float, limit: int | None, seconds: float | None
) -> list[TraceCall]:
    """Calls in the order of their times, the first at 0. Raise BadTrace, BadReplayFlag."""
    asks = read(trace)[:limit]
    asks = faster(asks, above_zero("--scale", scale))
    first = asks[0].at
    if seconds is not None:
        above_zero("--seconds", seconds)
        asks = [ask for ask in asks if ask.at - first <= seconds]
    return [
        TraceCall(one.at - first, one.prompt_tokens, one.answer_tokens, one.blocks) for one in asks
    ]


def above_zero(flag: str, number: float) -> float:
    """Raises BadReplayFlag."""
    if not 0 < number < float("inf"):
        raise BadReplayFlag(f"{flag} must be a number above 0, not {number:g}")
    return number


def targets_of(ttft_seconds: float, tpot_seconds: float) -> Targets:
    return Targets(above_zero("--slo-ttft", ttft_seconds), above_zero("--slo-tpot", tpot_seconds))


def server_of(url: str) -> ReplayServer:
    try:
        return ReplayServer.of(url)
    except ValueError as error:
        raise BadReplayFlag(f"--url: {error}") from None


def key_of(file: Path | None) -> str:
    """An API key, from a file so that no list of processes shows it."""
    if file is None:
        return ""
    try:
        key = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadReplayFlag(f"--api-key-file {file} cannot be read: {error}") from None
    if not key or not key.isprintable() or " " in key:
        raise BadReplayFlag(f"--api-key-file {file} holds no key")
    return key
