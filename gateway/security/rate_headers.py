"""Rate headers: what is left of a limit, as the headers of OpenAI's API say it.

    x-ratelimit-limit-requests      calls_per_minute
    x-ratelimit-remaining-requests  calls that may come at once
    x-ratelimit-reset-requests      until all of them may again, as in 1m30s
    x-ratelimit-limit-tokens, ...   the same of a limit of tokens

Source: OpenAI API documentation, "Rate limits in headers".
"""

from math import ceil
from typing import Final

from pdgate.protocols.call import Headers


def requests_limit(most: float) -> tuple[bytes, bytes]:
    """The first header of calls a minute, which is always the same."""
    return b"x-ratelimit-limit-requests", b"%d" % most


def tokens_headers(most: int, left: int, seconds: float | None) -> Headers:
    """`seconds`: until all of it is left again; None if time does not help."""
    found = [
        (b"x-ratelimit-limit-tokens", b"%d" % most),
        (b"x-ratelimit-remaining-tokens", b"%d" % left),
    ]
    if seconds is not None:
        found.append((b"x-ratelimit-reset-tokens", duration(seconds).encode()))
    return found


def duration(seconds: float) -> str:
    """As OpenAI writes it: 20ms, 1.5s, 6m0s, 23h59m1s."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms" if seconds > 0 else "0s"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"


REMAINING_REQUESTS: Final = b"x-ratelimit-remaining-requests"
RESET_REQUESTS: Final = b"x-ratelimit-reset-requests"
SECONDS: Final = [*(duration(seconds).encode() for seconds in range(61)), b"1m0s"]
"""By whole seconds; the last one is for a rounding above a minute, which a share of an uneven limit may have."""
