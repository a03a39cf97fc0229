"""Counts of one engine since it started, and their growth between two looks."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """Counters of one life of an engine, which only grow; None for what its page does not have.

    Attributes:
        computed: Prompt tokens that it computed itself.
        chosen: Of these, the ones that a peer was to compute, and that it rather computed itself.
        cached: Prompt tokens whose KV it still had.
        transferred: Prompt tokens whose KV came from another engine.
        first_tokens: Requests that have got their first token, so whose prompt is counted above.
        loads: Transfers from other engines that ended well; NIXL counts one per rank.
        loads_failed: Those that did not.
        expired: Prompts that it kept for a reader who did not come in time.
        read_late: Reads that ended after that, so of pages that may have held something else.
        steps, step_seconds: Tokens after the first of a request, and the time between them.
    """

    computed: float | None = None
    chosen: float | None = None
    cached: float | None = None
    transferred: float | None = None
    first_tokens: float | None = None
    loads: float | None = None
    loads_failed: float | None = None
    expired: float | None = None
    read_late: float | None = None
    steps: float | None = None
    step_seconds: float | None = None

    def since(self, before: "EngineCounters") -> "EngineCounters | None":
        """What is new; None if a number has fallen: the engine has started anew in between."""
        new = {}
        for name in _NAMES:
            now, then = getattr(self, name), getattr(before, name)
            if then is not None and (now is None or now < then):
                return None
            # Some pages show a family only once it has something to show.
            new[name] = None if now is None else now - (then or 0.0)
        return EngineCounters(**new)


_NAMES = tuple(each.name for each in fields(EngineCounters))
