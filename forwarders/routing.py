"""Routing of an attempt: reserves its engines and returns a Route. Sends nothing.

A route that works out is the caller's: its reservations end with the attempt. One that does not
leaves none behind.
"""

from collections.abc import Callable, Collection
from typing import Final

from pdgate.forwarders.base import KEEPS_TOGETHER, Engines, Leg, Reserved
from pdgate.forwarders.other_apis import why_whole
from pdgate.forwarders.record import DECODE_ONLY, DISAGGREGATED, LOCAL, PLAIN, PREFILL_ONLY
from pdgate.forwarders.retry import RetryPolicy, RetryState
from pdgate.forwarders.route import Route, Way
from pdgate.protocols.apis import RESPONSES, Api, Kind
from pdgate.protocols.call import CHAT, Call, Raw
from pdgate.protocols.errors import GenerationsDiffer, NoInstance, NotServed
from pdgate.protocols.instance import BOTH, DECODE, PREFILL, Instance, Role
from pdgate.protocols.sampling import sampling_of
from pdgate.scheduling.disaggregation import Decision, Taken
from pdgate.scheduling.disaggregation.decision import DECODE_CANNOT_PREFILL, NO_PREFILL

# For what is done with every call (protocols/members.py).
_SPLIT: Final = Taken.SPLIT
_PREFILL_ONLY: Final = Taken.PREFILL_ONLY
_GENERATES: Final = Kind.GENERATES
_PLAIN: Final = Role.PLAIN
_NO_PREFILL: Final = Decision(Taken.LOCAL, NO_PREFILL)
_MUST_SPLIT: Final = Decision(Taken.SPLIT, DECODE_CANNOT_PREFILL)
_ALL_ROLES: Final = (Role.PLAIN, Role.DECODE, Role.PREFILL)
_MAY_HAVE: Final = {
    Kind.GENERATES: (Role.PLAIN, Role.DECODE),
    Kind.READS: (Role.PLAIN,),
    Kind.COUNTS: _ALL_ROLES,
    Kind.PASSES: _ALL_ROLES,
    Kind.SOUNDS: (Role.PLAIN,),
}
_NOT_SERVED: Final = {
    Kind.GENERATES: "no engine of this model can serve this route alone",
    Kind.READS: "no plain engine serves this model, and this route needs one",
    Kind.COUNTS: "no engine serves this route",
    Kind.PASSES: "no engine serves this route",
    Kind.SOUNDS: "no plain engine serves this model, and this route needs one",
}
# Compared and not decoded: JSON has one way to write either. What is not raw was written by us.
_ONE: Final = Raw(b"1")
_ONES: Final = (_ONE, 1)
_NULL: Final = Raw(b"null")


class Router:
    """
    Attributes:
        way_of: Instance -> what of its protocol calls go by; asked once for each protocol and generation.
        policy: Whether decode may read prompts in place of prefill, among other things.
    """

    def __init__(
        self, engines: Engines, way_of: Callable[[Instance], Way], policy: RetryPolicy
    ) -> None:
        self._engines = engines
        self._ways: dict[tuple[str, str], Way] = {}
        self.way_of = way_of
        self.policy = policy

    def use(self, way_of: Callable[[Instance], Way]) -> None:
        """From the next attempt on."""
        self.way_of = way_of
        self._ways.clear()

    def route(self, call: Call, state: RetryState) -> Route:
        """Raises NoInstance, NotServed, UnknownModel, BadRequest."""
        if call.api is not None and (call.at or call.api.kind is not _GENERATES):
            return self._whole(call, state, call.api)
        engines = self._engines
        if not engines.disaggregates(call):
            return self._local(call, PLAIN, _PLAIN, self._reserve(_PLAIN, call, state))
        if state.without_prefill:
            decode = self._stand_in(call, state)
            if decode is not None:
                return self._local(call, DECODE_ONLY, DECODE, decode, _NO_PREFILL)
        try:
            if state.failures:
                prefill = self._reserve(PREFILL, call, state)
            else:
                prefill = engines.reserve(PREFILL, call)
        except GenerationsDiffer:
            # No engine is missing that would come back: decode would read all prompts for ever.
            raise
        except NoInstance:
            decode = self._stand_in(call, state) if self.policy.decode_stands_in else None
            if decode is None:
                raise
            return self._local(call, DECODE_ONLY, DECODE, decode, _NO_PREFILL)
        engine = prefill.instance
        try:
            if state.failures:
                decode = self._rather_alone(call, state, engine)
                if decode is not None:
                    prefill.withdraw()
                    return self._local(call, DECODE_ONLY, DECODE, decode, _NO_PREFILL)
            way = self._ways.get((engine.protocol, engine.generation)) or self._way(engine)
            body = call.body
            if (
                call.path != CHAT
                or way.asks_each
                or not (way.decode_can_prefill and KEEPS_TOGETHER.isdisjoint(body))
                or body.get("max_tokens") in _ONES
                or body.get("max_completion_tokens") in _ONES
            ):
                decision = self._decide(way, call, prefill)
            else:
                # Nothing keeps most chats on one engine but the engines' rule.
                decision = engines.decide(call, prefill, prefill_can_answer=False)
            if decision.taken is _SPLIT:
                decode = None
                if not way.staged:
                    if state.failures:
                        decode = self._reserve(DECODE, call, state, engine)
                    else:
                        decode = engines.reserve(DECODE, call, peer=engine)
                return Route(
                    DISAGGREGATED, engine.protocol, way.mode, way, prefill, decode, DECODE, None, decision
                )  # fmt: skip
            return self._on_one(call, state, prefill, way, decision)
        except BaseException:
            prefill.withdraw()
            raise

    def decode_for(self, route: Route, call: Call, state: RetryState) -> Reserved:
        """The engine that goes on with what prefill has read, where it is chosen only then."""
        assert route.prefill is not None
        return self._reserve(DECODE, call, state, route.prefill.instance)

    def _rather_alone(self, call: Call, state: RetryState, prefill: Instance) -> Reserved | None:
        """A decode engine that reads the prompt itself, where the prefill engine is a last resort.

        That is for calls that can wait; this one may have waited already.
        """
        works = self._engines.works(prefill, lately=state.waited)
        return None if works or not self.policy.decode_stands_in else self._stand_in(call, state)

    def _on_one(
        self, call: Call, state: RetryState, prefill: Reserved, way: Way, decision: Decision
    ) -> Route:
        """On the engine that was chosen to read, where it can answer; else on a decode engine that is its peer."""
        engine = prefill.instance
        if decision.taken is _PREFILL_ONLY:
            leg = Leg(engine, call.path, call.body)
            return Route(
                PREFILL_ONLY, engine.protocol, way.mode, way, prefill, None, PREFILL, leg, decision
            )
        prefill.withdraw()
        if call.api is not None and not way.decode_can_prefill:
            return self._whole(call, state, call.api, decision)
        if engine.role is BOTH and decision.may_stay_at(engine.id):
            # It was chosen by what it has cached and has to read, and can answer as well as any other.
            decode = self._reserve(DECODE, call, state, None, True, (engine.id,))
            if decode.instance.id == engine.id:
                return self._local(call, LOCAL, DECODE, decode, decision)
            # It is to serve the other side only, or has failed this call; and what came instead may not be its peer.
            decode.withdraw()
        decode = self._reserve(DECODE, call, state, engine, True, decision.among)
        return self._local(call, LOCAL, DECODE, decode, decision)

    def _local(
        self, call: Call, path: str, role: Role, one: Reserved, decision: Decision | None = None
    ) -> Route:
        """The whole call on one engine."""
        engine = one.instance
        try:
            way = self._way(engine)
            leg = way.forwarder.local(call, engine)
        except BaseException:
            one.withdraw()
            raise
        mode = "" if path == PLAIN else way.mode
        return Route(path, engine.protocol, mode, way, None, one, role, leg, decision)

    def _whole(
        self, call: Call, state: RetryState, api: Api, decision: Decision | None = None
    ) -> Route:
        """On one engine, of whichever role can have it."""
        one = self._one(call, state, api.kind)
        if api.kind is _GENERATES:
            return self._local(call, PLAIN, _PLAIN, one, decision)
        engine = one.instance
        leg = Leg(engine, call.path, call.body, passed=call.passed)
        try:
            way = self._way(engine)
        except BaseException:
            one.withdraw()
            raise
        return Route(PLAIN, engine.protocol, "", way, None, one, _PLAIN, leg, decision)

    def _one(self, call: Call, state: RetryState, kind: Kind) -> Reserved:
        found: NoInstance | None = None
        reads = kind in (Kind.GENERATES, Kind.READS)
        for role in _ALL_ROLES if call.at else _MAY_HAVE[kind]:
            if not self._engines.has(role, call):
                continue
            try:
                if role is DECODE and kind is Kind.GENERATES and not call.at:
                    one = self._stand_in(call, state)
                    if one is not None:
                        return one
                    continue
                return self._alone(role, call, reads, state.failed, state.given_up)
            except NoInstance as error:
                found = found or error
        raise found or NotServed(_NOT_SERVED[kind], at="")

    def _stand_in(self, call: Call, state: RetryState) -> Reserved | None:
        """A decode engine that can read a prompt; those of some protocols cannot."""
        cannot: set[str] = set()
        while True:
            avoid = cannot | state.failed, cannot | state.unfit
            try:
                decode = self._alone(DECODE, call, True, *avoid)
            except NoInstance:
                return None
            try:
                can = self._way(decode.instance).decode_can_prefill
            except BaseException:
                decode.withdraw()
                raise
            if can:
                return decode
            decode.withdraw()
            cannot.add(decode.instance.id)

    def _reserve(
        self,
        role: Role,
        call: Call,
        state: RetryState,
        peer: Instance | None = None,
        reads: bool | None = None,
        among: Collection[str] = (),
    ) -> Reserved:
        """An engine that has not failed this call yet, and has room for it; else one that may be tried again.

        One that is too short would refuse it, and its refusal would be the client's.
        """
        reserve = self._engines.reserve
        if not state.failures:
            return reserve(role, call, peer=peer, reads=reads, among=among)
        try:
            return reserve(
                role, call, avoid=state.failed, peer=peer, reads=reads, among=among, with_room=True
            )
        except NoInstance:
            return reserve(role, call, avoid=state.given_up, peer=peer, reads=reads, among=among)

    def _alone(
        self,
        role: Role,
        call: Call,
        reads: bool,
        avoid: Collection[str],
        at_least: Collection[str],
    ) -> Reserved:
        """An engine for a whole call, paired or not; `at_least`: to avoid if `avoid` leaves none."""
        reserve = self._engines.reserve
        try:
            return reserve(role, call, avoid=avoid, reads=reads, alone=True)
        except NoInstance:
            return reserve(role, call, avoid=at_least, reads=reads, alone=True)

    def _way(self, engine: Instance) -> Way:
        kind = engine.protocol, engine.generation
        way = self._ways.get(kind)
        if way is None:
            # Not as a method, which it is none.
            way_of = self.way_of
            way = self._ways[kind] = way_of(engine)
        return way

    def _decide(self, way: Way, call: Call, prefill: Reserved) -> Decision:
        """Whether a call is split: first what must be, then what the engines' rule says."""
        if call.api is not None:
            why_local = why_whole(way.forwarder, call)
            if why_local is not None:
                return Decision(Taken.LOCAL, why_local)
        alone = way.prefill_can_answer and wants_one_token(call)
        if not alone:
            why_local = way.forwarder.why_local(call)
            if why_local is not None:
                return Decision(Taken.LOCAL, why_local)
            if not way.decode_can_prefill:
                return _MUST_SPLIT
        return self._engines.decide(call, prefill, prefill_can_answer=alone)


def wants_one_token(call: Call) -> bool:
    """Whether the answer can have no second token, so that its KV is needed no more afterwards.

    Such a call is over when its prompt has been read, so prefill may answer it; it is asked without a
    word of hand-over, and so keeps no KV.
    """
    body = sampling_of(call)
    limit = body.get("max_completion_tokens") if call.path == CHAT else None
    if limit is None or limit == _NULL:
        limit = body.get("max_output_tokens" if call.path == RESPONSES else "max_tokens")
    if isinstance(limit, Raw):
        return limit == _ONE
    return type(limit) is int and limit == 1
