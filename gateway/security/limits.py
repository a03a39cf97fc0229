"""How many calls a minute: a token bucket, filled by the clock and not by a timer."""


class Bucket:
    """Full at the start: a minute's calls may come at once, and then one by one.

    Attributes:
        per_minute: From 1.
        level: Calls that are in it; who comes in takes one out, after `wait_seconds` said 0.
    """

    __slots__ = ("_per_second", "_seen", "level", "per_minute")

    def __init__(self, per_minute: float, now: float) -> None:
        """`now` and all later times are monotonic seconds."""
        self.per_minute = per_minute
        self._per_second = per_minute / 60
        self.level = per_minute
        self._seen = now

    def wait_seconds(self, now: float) -> float:
        """Until a call may be taken out; 0 if one may be now."""
        level = self.level + (now - self._seen) * self._per_second
        self.level = level = min(self.per_minute, level)
        self._seen = now
        return 0.0 if level >= 1 else (1 - level) / self._per_second
