"""Headroom of a tenant: what is left of its limits, as the headers of OpenAI's API, and as errors.

    x-ratelimit-limit-requests      calls_per_minute
    x-ratelimit-remaining-requests  calls that may come at once
    x-ratelimit-reset-requests      until all of them may again, as in 1m30s
    x-ratelimit-limit-tokens, ...   the same of the limit of tokens with the shortest window

Source: OpenAI API documentation, "Rate limits in headers", and "Error codes" (429).
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.security.token_limits import TokenLimit, Window
from pdgate.gateway.tenants import account
from pdgate.gateway.tenants.account import AccountView, TokenShortage
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import GatewayError, InsufficientQuota, RateLimited

_SPOKEN: Final = ("tokens", "tokens of prompts", "generated tokens")
_WINDOWS: Final = {Window.MINUTE: " a minute", Window.DAY: " a day", Window.TOTAL: ""}


def headers_of(
    key_state: KeyState, limits: Sequence[TokenLimit], view: AccountView | None, now_ms: int
) -> Headers:
    """`view`: None where no tokens are counted."""
    found: list[tuple[bytes, bytes]] = []
    if (calls := key_state.calls_left()) is not None:
        found += _three(b"requests", *calls)
    if limits and view is not None:
        limit = limits[0]
        left = account.left(view, limit)
        seconds: float | None = None
        if limit.window is Window.MINUTE:
            seconds = (limit.most - left) * 60 / limit.most
        elif limit.window is Window.DAY:
            seconds = (account.DAY_MS - now_ms % account.DAY_MS) / 1000
        found += _three(b"tokens", limit.most, left, seconds)
    return found


def error_of(
    refused: TokenShortage, needs: tuple[int, int], unsaid: bool, headers: Headers
) -> GatewayError:
    """`unsaid`: the call does not say how much may be generated for it."""
    limit = refused.limit
    takes = (sum(needs), *needs)[limit.measure]
    hint = ", as it says no max_tokens" if unsaid and limit.measure != 1 else ""
    text = (
        f"limit {limit.name} of this API key: {limit.most} {_SPOKEN[limit.measure]}{_WINDOWS[limit.window]}"
        f", of which {refused.left} are left; the call may take {takes}{hint}"
    )
    if limit.window is Window.TOTAL and not refused.held:
        return InsufficientQuota(text, limits=headers)
    seconds = max(1, ceil(refused.seconds or 0))
    return RateLimited(text, retry_after_seconds=seconds, limits=headers)


def _three(of: bytes, most: int, left: int, seconds: float | None) -> Headers:
    found = [
        (b"x-ratelimit-limit-" + of, b"%d" % most),
        (b"x-ratelimit-remaining-" + of, b"%d" % left),
    ]
    if seconds is not None:
        found.append((b"x-ratelimit-reset-" + of, duration(seconds).encode()))
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
