"""Authentication by API keys, and the models and limits that each key is held to.

    authenticator.screen(headers)      before the body is read: whose key is it, and is it used up?
    key_state.enter(model)             the call counts, until `leave`
    authenticator.key_state(headers)   whose key it is, for routes that count nothing

A worker has its share of a key's limits: the limit divided by the workers, rounded up. So all
together never allow much more than the limit, and may allow less to a client whose connections
all lead to one of them.

The hash of a header that was good is remembered (KNOWN_HEADERS of them), so most calls cost one
look into a dictionary; a wrong one costs a SHA-256 and leaves nothing behind.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from time import monotonic
from typing import NoReturn, Protocol

from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.keys import ApiKey, hash_of
from pdgate.gateway.security.rate_headers import (
    REMAINING_REQUESTS,
    RESET_REQUESTS,
    SECONDS,
    requests_limit,
)
from pdgate.gateway.security.token_limits import NO_TOKEN_LIMITS
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import BadRequest, PermissionDenied, RateLimited, Unauthorized
from pdgate.protocols.usage import Usage

KNOWN_HEADERS = 4096
MAX_HEADER_BYTES = 1024
BEARER = b"bearer "
AUTHORIZATION = b"authorization"
KEY_HEADER = b"x-api-key"
"""Where Anthropic's clients say it; for a client that sends both, the other one counts."""

RETRY_SECONDS = 1
"""When to come back if too many calls run: it is not known when one of them ends."""


class Bucket:
    """A token bucket, filled by the clock and not by a timer.

    Full at the start: a minute's calls may come at once, and then one by one.

    Attributes:
        per_minute: From 1.
        level: Calls that are in it; a call that enters takes one out, after `wait_seconds` said 0.
    """

    __slots__ = ("_per_second", "_seen", "level", "per_minute")

    def __init__(self, per_minute: float, now: float) -> None:
        """`now` and all later times are monotonic seconds."""
        self.per_minute = per_minute
        self._per_second = per_minute / 60
        self.level = per_minute
        self._seen = now

    def wait_seconds(self, now: float) -> float:
        """Seconds until a call may be taken out; 0 if one may be now."""
        level = self.level + (now - self._seen) * self._per_second
        self.level = level = min(self.per_minute, level)
        self._seen = now
        return 0.0 if level >= 1 else (1 - level) / self._per_second


class KeyState:
    """What one worker knows of one key.

    Attributes:
        name, priority: The key's.
        running: Calls that have entered and not left.
        calls: Calls that have entered.
        refused: Reason -> calls that have not.
        prompt, cached, generated: Tokens that calls of it took, as far as that is known.
        counts_tokens: Whether it has limits of tokens (gateway/tenants).
        tells_calls: Whether answers say what is left of its calls a minute, and of nothing else.
    """

    __slots__ = (
        "_bucket", "_calls_limit", "_clock", "_max_calls", "_models", "_told", "_told_level", "cached", "calls", "counts_tokens",
        "generated", "key", "name", "priority", "prompt", "refused", "running", "tells_calls",
    )  # fmt: skip

    def __init__(self, key: ApiKey, workers: int, clock: Callable[[], float]) -> None:
        self.running = 0
        self.calls = 0
        self.prompt = self.cached = self.generated = 0
        self.refused: Counter[str] = Counter()
        self._clock = clock
        self._bucket: Bucket | None = None
        self._told: Headers = ()
        self.hold_to(key, workers)

    def hold_to(self, key: ApiKey, workers: int) -> None:
        """Hold the key to these models and limits from now on. Calls of the last minute still count."""
        self.key = key
        self.counts_tokens = key.tokens is not NO_TOKEN_LIMITS and bool(key.tokens.each())
        self.tells_calls = key.calls_per_minute is not None and not self.counts_tokens
        self.name, self.priority = key.name, key.priority
        self._models = key.models
        self._max_calls = None if key.max_calls is None else ceil(key.max_calls / workers)
        per_minute = key.calls_per_minute
        now, before = self._clock(), self._bucket
        self._bucket = None
        if per_minute is not None:
            # A bucket for less than one would never hold a whole call.
            bucket = Bucket(max(1.0, per_minute / workers), now)
            if before is not None:
                before.wait_seconds(now)
                bucket.level = max(0.0, bucket.level - (before.per_minute - before.level))
            self._bucket = bucket
            self._calls_limit = requests_limit(bucket.per_minute)
            self._told_level, self._told = -1.0, ()

    @property
    def is_rested(self) -> bool:
        """Whether a new state of this key would let in no more: nothing runs, and a minute's calls are due again."""
        bucket = self._bucket
        if self.running or bucket is None:
            return not self.running
        bucket.wait_seconds(self._clock())
        return bucket.level >= bucket.per_minute

    def may_ask(self, model: str | None) -> bool:
        return not self._models or model in self._models

    def check(self) -> None:
        """Raises RateLimited if the key is used up for now."""
        if self._max_calls is not None and self.running >= self._max_calls:
            self._refuse_one_more()
        # As a method it would be looked up anew each time.
        bucket, clock = self._bucket, self._clock
        if bucket is not None and (wait := bucket.wait_seconds(clock())):
            self._refuse_for(wait)

    def enter(self, model: str | None) -> None:
        """The call counts until `leave`, if the key is not used up. Raises PermissionDenied, RateLimited.

        `check` let its head pass, but so it did those of all calls whose bodies come together.
        """
        if self._models and model not in self._models:
            self.refused["model"] += 1
            raise PermissionDenied(_not_allowed(model), param="model")
        if self._max_calls is not None and self.running >= self._max_calls:
            self._refuse_one_more()
        bucket = self._bucket
        if bucket is not None:
            # Mostly as full as `check` left it, so that the clock need not be read again.
            if bucket.level < 1 and (wait := bucket.wait_seconds(self._clock())):
                self._refuse_for(wait)
            bucket.level -= 1
        self.running += 1
        self.calls += 1

    def leave(self) -> None:
        self.running -= 1

    def note(self, usage: Usage) -> None:
        """What a call took that is over, as its engine said it."""
        # Not by `add`: a call of a function for each call.
        self.prompt += usage.prompt or 0
        self.cached += usage.cached or 0
        self.generated += usage.generated or 0

    def add(self, prompt: int, cached: int, generated: int) -> None:
        self.prompt += prompt
        self.cached += cached
        self.generated += generated

    def calls_headers(self) -> Headers:
        """Return headers about this worker's calls a minute, as they were when a call came last; none without a limit."""
        bucket = self._bucket
        if bucket is None:
            return ()
        level = bucket.level
        # Written anew takes 3,000 instructions, and most calls come when all that came before are long ago: the
        # bucket is full but for this one.
        if level != self._told_level:
            most = bucket.per_minute
            self._told_level = level
            self._told = (
                self._calls_limit,
                (REMAINING_REQUESTS, b"%d" % level),
                (RESET_REQUESTS, SECONDS[ceil((most - level) * 60 / most)]),
            )
        return self._told

    def _refuse_for(self, wait_seconds: float) -> NoReturn:
        self.refused["rate"] += 1
        raise RateLimited(
            "too many calls a minute with this API key",
            retry_after_seconds=ceil(wait_seconds),
            limits=self.calls_headers(),
        )

    def _refuse_one_more(self) -> NoReturn:
        self.refused["concurrency"] += 1
        raise RateLimited(
            "too many calls with this API key are running",
            retry_after_seconds=RETRY_SECONDS,
            limits=self.calls_headers(),
        )


class TokenOpener(Protocol):
    """Signed tokens of an identity provider, which open as keys do; see gateway/tenants/tokens.py.

    Attributes:
        states: `ApiKey.state_id` of a tenant -> its state, of those that came lately.
        gone: Kind of tokens -> how many tenants took whose states are no more.
    """

    @property
    def states(self) -> Mapping[str, KeyState]: ...

    @property
    def gone(self) -> Mapping[str, int]: ...

    def state_of(self, token: bytes) -> KeyState | None:
        """Return the state of a token's tenant; None for what is no token. Raise Unauthorized, SigningKeysUnknown, RateLimited."""

    def state_by_rule(self, name: str, rule: str) -> KeyState | None:
        """State of a tenant whose token came once; None where there is no such rule any more. Raise RateLimited."""


class Authenticator:
    """
    Attributes:
        key_states: Of all keys that there are.
        tokens: None where keys alone open.
    """

    def __init__(
        self,
        keys: Iterable[ApiKey],
        workers: int = 1,
        clock: Callable[[], float] = monotonic,
        tokens: TokenOpener | None = None,
    ) -> None:
        self.key_states: dict[str, KeyState] = {}
        self.tokens = tokens
        self._workers = workers
        self._clock = clock
        self._by_header: dict[bytes, KeyState] = {}
        self._by_hash: dict[str, KeyState] = {}
        self.admit(keys)

    def admit(self, keys: Iterable[ApiKey]) -> None:
        """These and no others from now on. Calls that run end as they would have."""
        found: dict[str, KeyState] = {}
        for key in keys:
            key_state = self.key_states.get(key.name)
            if key_state is None:
                key_state = KeyState(key, self._workers, self._clock)
            elif key_state.key != key:
                key_state.hold_to(key, self._workers)
            found[key.name] = key_state
        self.key_states = found
        self._by_hash = {key_state.key.sha256: key_state for key_state in found.values()}
        self._by_header = {}

    def screen(self, headers: RequestHeaders) -> KeyState:
        """Raises Unauthorized, RateLimited, BadRequest."""
        said = None if headers.twice else headers.named.get(AUTHORIZATION)
        key_state = None if said is None else self._by_header.get(said)
        if key_state is None:
            key_state = self.key_state(headers)
        key_state.check()
        return key_state

    def key_state(self, headers: RequestHeaders) -> KeyState:
        """Raises Unauthorized, BadRequest."""
        said = _only(headers, AUTHORIZATION)
        if said is None:
            key = _only(headers, KEY_HEADER)
            # As if it had come in the other one.
            said = None if key is None else BEARER + key
        if said is None:
            raise Unauthorized("an API key is needed: send the header Authorization: Bearer <key>")
        return self._by_header.get(said) or self._look_up(said)

    def of_owner(self, name: str, rule: str) -> KeyState | None:
        """State of a key, or of a tenant by the rule of its token, whether that has come to this process or not; None for
        one that may not call any more. Raise RateLimited."""
        found = self.key_states.get(name)
        if found is None and self.tokens is not None:
            found = self.tokens.state_by_rule(name, rule)
        return found

    def states(self) -> list[KeyState]:
        """States of all keys, and of the tenants whose tokens came lately."""
        more = () if self.tokens is None else self.tokens.states.values()
        return [*self.key_states.values(), *more]

    def _look_up(self, said: bytes) -> KeyState:
        key_state = None
        if len(said) <= MAX_HEADER_BYTES and said[: len(BEARER)].lower() == BEARER:
            key_state = self._by_hash.get(hash_of(said[len(BEARER) :].strip()))
        if key_state is None and self.tokens is not None and said[: len(BEARER)].lower() == BEARER:
            # Not remembered here, as it is good for a time only.
            key_state = self.tokens.state_of(said[len(BEARER) :].strip())
            if key_state is not None:
                return key_state
        if key_state is None:
            # Not which of the two: a guess learns nothing.
            raise Unauthorized("the API key is not known")
        if len(self._by_header) >= KNOWN_HEADERS:
            self._by_header.clear()
        self._by_header[said] = key_state
        return key_state


def _only(headers: RequestHeaders, name: bytes) -> bytes | None:
    """What it says, if it came. Raises BadRequest if it came twice: others may read another one."""
    if headers.times(name) > 1:
        said = name.decode()
        raise BadRequest(f"the header {said} came twice", param=said)
    return headers.named.get(name)


def _not_allowed(model: str | None) -> str:
    if model is None:
        return "this API key is for certain models only, so the call must name one"
    return "this API key may not ask that model"
