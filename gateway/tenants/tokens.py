"""Signed tokens (JWT) of an identity provider, which open the gateway as API keys do.

    header.payload.signature    RS256, ES256 or EdDSA, by the kind of the key that its `kid` names, and by no other
    iss, aud, exp               there, and as configured; nbf and iat not in the future
    a claim (`sub`)             names the tenant: jwt:<claim>
    the first rule that fits    its models and limits: of that token, as another one of the tenant may have others

What a good token opens is remembered by its hash until it expires, KNOWN_TOKENS of them; a wrong one costs a signature
and leaves nothing behind. A token whose `kid` is not known asks for a look at the provider's keys (jwks.py), and
is refused: no call waits for that.

Source: RFC 7519, 7517, 8725 (algorithms are pinned by key); PyJWT 2.10.1, jwt.decode.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from re import compile
from time import monotonic, time
from typing import Any, Final, Protocol

from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.security.keys import ApiKey
from pdgate.protocols.errors import GatewayError, RateLimited, Unauthorized

KNOWN_TOKENS: Final = 4096
USUAL_TENANTS: Final = 1024
"""Whose states are kept, the latest; of others as long as a new one would let in more. What they took is in the accounts."""
MOST_TENANTS: Final = 16384
MOST_LOOKED_AT: Final = 16
"""States, the longest unused, before a new one is made: one of them is gone then, or all have calls or a limit to remember."""
MOST_TOKEN_BYTES: Final = 8192
LEEWAY_SECONDS: Final = 10.0
"""That the clocks of two hosts may differ by."""
PREFIX: Final = "jwt:"
"""No API key's name has a colon, so none is that of a tenant."""

NO_LIMITS: Final = ApiKey("", "")
_is_plain = compile(r"[A-Za-z0-9._@|+=/-]{1,64}").fullmatch


class SigningKeysUnknown(GatewayError):
    """The provider's keys have not come yet, or not for long: it is not known who calls."""

    status, code = 503, "jwt_keys_unavailable"


class SigningKeys(Protocol):
    """What tokens are checked with; see jwks.py.

    Attributes:
        edition: Counts changes of the keys.
    """

    edition: int

    def find(self, kid: str | None) -> tuple[Any, str] | None:
        """Key and its only algorithm; None if it is not known, which asks for a look. Raise SigningKeysUnknown."""


@dataclass(frozen=True, slots=True)
class ClaimRule:
    """What tokens are held to that have a claim.

    Attributes:
        claim: Empty for all tokens.
        value: That the claim is, or has among others.
        key: Models and limits.
    """

    claim: str
    value: str
    key: ApiKey

    @property
    def name(self) -> str:
        """As ApiKey.rule has it."""
        return f"{self.claim}={self.value}" if self.claim else ""

    def fits(self, claims: Mapping[str, Any]) -> bool:
        if not self.claim:
            return True
        found: Any = claims
        # As in realm_access.roles; a claim whose name has a dot, or is a URL, is looked for whole first.
        if self.claim in claims:
            found = claims[self.claim]
        else:
            for name in self.claim.split("."):
                if not isinstance(found, Mapping):
                    return False
                found = found.get(name)
        if isinstance(found, str):
            # Scopes are words of one text.
            return self.value == found or self.value in found.split()
        return isinstance(found, list) and self.value in found


@dataclass(frozen=True, slots=True)
class TokenChecks:
    """
    Attributes:
        name_claim: Names the tenant.
        rules: The first that fits counts; a token that none fits opens nothing. None at all: no limits.
    """

    issuer: str
    audience: str
    name_claim: str = "sub"
    rules: Sequence[ClaimRule] = ()


class SignedTokens:
    """
    Attributes:
        states: ApiKey.state_id -> the state of a tenant.
        gone: What tenants took whose states are not kept.
    """

    def __init__(
        self,
        checks: TokenChecks,
        keys: SigningKeys,
        workers: int = 1,
        clock: Callable[[], float] = time,
    ) -> None:
        """`clock`: Unix time."""
        self.states: OrderedDict[str, KeyState] = OrderedDict()
        self.gone: Counter[str] = Counter()
        self._checks = checks
        self._keys = keys
        self._workers = workers
        self._clock = clock
        self._known: dict[bytes, tuple[KeyState, float]] = {}
        self._edition = keys.edition

    def use(self, checks: TokenChecks) -> None:
        """Use other checks from the next call on."""
        self._checks = checks
        self._known.clear()

    def state_of(self, token: bytes) -> KeyState | None:
        """Return the state of a token's tenant; None for what is no token. Raise Unauthorized, SigningKeysUnknown, RateLimited."""
        if token.count(b".") != 2:
            return None
        if len(token) > MOST_TOKEN_BYTES:
            raise Unauthorized(f"the token is longer than {MOST_TOKEN_BYTES} bytes")
        if self._edition != self._keys.edition:
            # A key that is no more has signed nothing.
            self._edition = self._keys.edition
            self._known.clear()
        digest, now = sha256(token).digest(), self._clock()
        known = self._known.get(digest)
        if known is not None and self.states.get(known[0].key.state_id) is known[0]:
            if now >= known[1] + LEEWAY_SECONDS:
                del self._known[digest]
                raise Unauthorized("the token has expired")
            self.states.move_to_end(known[0].key.state_id)
            return known[0]
        claims = self._claims(token)
        state = self._state(claims)
        if len(self._known) >= KNOWN_TOKENS:
            self._known.clear()
        self._known[digest] = state, float(claims["exp"])
        return state

    def _claims(self, token: bytes) -> dict[str, Any]:
        """Of a good one. Raise Unauthorized, SigningKeysUnknown."""
        import jwt

        checks = self._checks
        try:
            said = jwt.get_unverified_header(token)
            kid = said.get("kid")
            found = self._keys.find(kid if isinstance(kid, str) else None)
            if found is None:
                raise Unauthorized("the token is signed with a key that is not known")
            key, algorithm = found
            if said.get("alg") != algorithm:
                raise Unauthorized("the token's algorithm is not that of its key")
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=checks.audience,
                issuer=checks.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthorized("the token has expired") from None
        except jwt.PyJWTError:
            # Not which of all: a guess learns nothing.
            raise Unauthorized("the token is not a good one") from None
        except (ValueError, TypeError, RecursionError, OverflowError):
            raise Unauthorized("the token is not a good one") from None
        return claims

    def _state(self, claims: Mapping[str, Any]) -> KeyState:
        """Raise Unauthorized, RateLimited."""
        checks = self._checks
        said = claims.get(checks.name_claim)
        if not isinstance(said, str) or not said:
            raise Unauthorized(f"the token has no claim {checks.name_claim}")
        rule = next((rule for rule in checks.rules if rule.fits(claims)), None)
        if rule is None and checks.rules:
            raise Unauthorized("the token is of none of those who may call")
        return self._held_to(rule, name_of(said))

    def state_by_rule(self, name: str, rule: str) -> KeyState | None:
        """Of a tenant whose token came once, here or to another process; None where there is no such rule any more.
        Raise RateLimited."""
        rules = self._checks.rules
        found = next((one for one in rules if one.name == rule), None)
        if not name.startswith(PREFIX) or (found is None and (rules or rule)):
            return None
        return self._held_to(found, name)

    def _held_to(self, rule: ClaimRule | None, name: str) -> KeyState:
        """Raise RateLimited."""
        key = NO_LIMITS if rule is None else rule.key
        key = replace(key, name=name, rule="" if rule is None else rule.name)
        state = self.states.get(key.state_id)
        if state is None:
            self._make_room()
            state = self.states[key.state_id] = KeyState(key, self._workers, monotonic)
        elif state.key != key:
            state.hold_to(key, self._workers)
        self.states.move_to_end(key.state_id)
        return state

    def _make_room(self) -> None:
        if len(self.states) < USUAL_TENANTS:
            return
        gone = 0
        for one in list(islice(self.states.values(), MOST_LOOKED_AT)):
            if not one.is_rested:
                # Others have their turn: calls may run for hours.
                self.states.move_to_end(one.key.state_id)
                continue
            del self.states[one.key.state_id]
            self.gone.update(prompt=one.prompt, cached=one.cached, generated=one.generated)
            gone += 1
            # For each new one, so that they are as few as usual again.
            if gone == 2:
                break
        if len(self.states) >= MOST_TENANTS:
            raise RateLimited("too many tenants call at once", retry_after_seconds=1)


def name_of(claim: str) -> str:
    """Name of the tenant, as it is shown and counted: at most 68 characters, and no two claims have the same."""
    if _is_plain(claim):
        return PREFIX + claim
    return f"{PREFIX}sha256:{sha256(claim.encode(errors='surrogatepass')).hexdigest()[:32]}"
