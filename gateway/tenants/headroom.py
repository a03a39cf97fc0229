"""Headroom of a tenant: what is left of its limits, as headers, and as errors.

Headers (security/rate_headers.py) are of its calls a minute, and of the limit of tokens with the shortest window.

Source: OpenAI API documentation, "Error codes" (429).
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.security.rate_headers import tokens_headers
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
    found = [*key_state.calls_headers()]
    if limits and view is not None:
        limit = limits[0]
        left = account.left(view, limit)
        seconds: float | None = None
        if limit.window is Window.MINUTE:
            seconds = (limit.most - left) * 60 / limit.most
        elif limit.window is Window.DAY:
            seconds = (account.DAY_MS - now_ms % account.DAY_MS) / 1000
        found += tokens_headers(limit.most, left, seconds)
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
