"""Scheduler: chooses an instance for a leg and counts it as busy until the leg is over.

    with scheduler.reserve(Role.PREFILL, call) as prefill:
        ...                          # prefill.instance
        prefill.has_read(seconds)    # optional: how long that took, to learn from
        prefill.end()                # optional: over before the block is

The account falls with the block, whatever ends it, so it cannot drift.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.errors import GatewayError, GenerationsDiffer, NoInstance
from pdgate.protocols.instance import (
    BOTH,
    DECODE,
    ENCODE,
    GENERATIONS_APART,
    PLAIN,
    PREFILL,
    Instance,
    Role,
)
from pdgate.scheduling.context_length import (
    long_enough,
    may_be_too_long,
    refused_by_all,
    with_room_behind,
)
from pdgate.scheduling.decision_trace import (
    CHOSEN_BEFORE,
    MOST_SHOWN,
    ONLY_ONE,
    DecisionTrace,
    Weighed,
    left_out,
    shown,
)
from pdgate.scheduling.decision_trace import Rule as Steps
from pdgate.scheduling.disaggregation import Always, Decision, SplitRule, Taken
from pdgate.scheduling.disaggregation.decision import NO_ROOM, ONE_TOKEN
from pdgate.scheduling.disaggregation.rules import NOTHING_CACHED, Reads
from pdgate.scheduling.eligible import EligibleSet
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import RETRY_AFTER_SECONDS, Endpoints
from pdgate.scheduling.health.cause import cause_of
from pdgate.scheduling.neighbours import calls_as
from pdgate.scheduling.partners import Partners
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.prefix.index import PrefixIndex, PrefixUpdate
from pdgate.scheduling.reservation import Reservation, ended_well

NOTHING_OF_THEIR_OWN: Final[Mapping[str, Mapping[Role, Policy]]] = {}

_SPLIT: Final = Taken.SPLIT
_PREFILL_ONLY: Final = Decision(Taken.PREFILL_ONLY, ONE_TOKEN)


class Scheduler:
    """
    Attributes:
        rule: Which calls are split; another one counts from the next call on.
        freed: Called when an engine has room for another prompt.
        places: Calls that one engine may read at a time, and answer, while another one has a place, inf for any number; None for
            no limit at all.
        told: Called with the trace of every decision; None where no trace is wanted.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        prefill: Policy,
        decode: Policy,
        plain: Policy,
        rule: SplitRule | None = None,
        prefixes: PrefixIndex | None = None,
        of_models: Mapping[str, Mapping[Role, Policy]] = NOTHING_OF_THEIR_OWN,
        encode: Policy | None = None,
    ) -> None:
        """`encode`: plain's, where there is none. `prefixes`: kept only while a policy asks for it. `of_models`: policies of their own."""
        self._endpoints = endpoints
        # Looked up here for every call, so without a function where they are there.
        self._eligible_sets, self._by_id = endpoints.eligible_sets, endpoints.by_id
        self._worked = endpoints.worked
        self.freed: Callable[[], None] | None = None
        self.places: tuple[float, float] | None = None
        self.told: Callable[[Call, DecisionTrace], None] | None = None
        self._rule = rule or Always()
        self._policies = {PREFILL: prefill, DECODE: decode, PLAIN: plain, ENCODE: encode or plain}
        self._of_models = of_models
        self._all_prefixes = prefixes
        self._prefixes: PrefixIndex | None = None
        self._decode_asks = False
        if prefixes is not None:
            endpoints.on_lost = prefixes.forget
        self._keep_count()

    @property
    def rule(self) -> SplitRule:
        return self._rule

    @rule.setter
    def rule(self, rule: SplitRule) -> None:
        self._rule = rule
        self._keep_count()

    def use(self, role: Role, policy: Policy) -> None:
        """Use a policy from the next call on."""
        self._policies[role] = policy
        self._keep_count()

    def use_of_models(self, of_models: Mapping[str, Mapping[Role, Policy]]) -> None:
        """Use these from the next call on, and no others of models."""
        self._of_models = of_models
        self._keep_count()

    def _policy(self, role: Role, call: Call) -> Policy:
        if self._of_models:
            own = self._of_models.get(self._endpoints.meant(call.model))
            if own is not None and role in own:
                return own[role]
        return self._policies[role]

    def _keep_count(self) -> None:
        """Of what each instance has cached, if a policy or the rule asks for it."""
        before = self._prefixes
        all_of_them = (self._policies, *self._of_models.values())
        by_rule = self._rule.reads_cached
        asked = by_rule or any(
            policy.needs_prefixes for each in all_of_them for policy in each.values()
        )
        self._prefixes = self._all_prefixes if asked else None
        self._decode_asks = by_rule or any(
            each[DECODE].needs_prefixes for each in all_of_them if DECODE in each
        )
        if before is not None and not asked:
            # What is sent from now on will not be in it.
            before.clear()

    def cached(self, call: Call) -> Mapping[str, int]:
        """Instance id -> tokens of the call's prompt that it has; nothing if no policy asks for that."""
        return {} if self._prefixes is None else self._prefixes.matched(call)

    def disaggregates(self, call: Call) -> bool:
        """Whether the call's model has a pair; otherwise plain instances serve it, if any."""
        model = call.model
        eligible = self._eligible_sets.get(model) or self._endpoints.eligible(model)
        return eligible.disaggregated or not eligible.up[PLAIN]

    def has(self, role: Role, call: Call) -> bool:
        """Whether an instance of the role has the call's model, in whatever state it is."""
        return self._endpoints.has(role, call.model)

    def decide(self, call: Call, prefill: Reads, *, prefill_can_answer: bool = False) -> Decision:
        """Whether the call, for which this engine is reserved, is worth splitting now."""
        rule = self._rule
        if prefill_can_answer and rule.prefill_may_answer:
            return _PREFILL_ONLY
        fixed = rule.fixed
        if fixed is not None and (prefill.instance.role is not BOTH or fixed.taken is not _SPLIT):
            return fixed
        eligible = self._endpoints.eligible(call.model)
        too_long = eligible.uneven and may_be_too_long(call, eligible.shortest)
        if fixed is not None and not too_long:
            return fixed
        instance = prefill.instance
        reserved = self._by_id.get(instance.id) or Endpoint(instance)
        decodes, may_keep = _decodes(call, reserved, eligible, too_long)
        if not decodes:
            return Decision(Taken.LOCAL, NO_ROOM, among=(instance.id,))
        if fixed is not None:
            return fixed
        cached = self._cached_for_decode(call)
        if cached and may_keep and instance.role is BOTH:
            cached = _with_readers(cached, call, reserved, prefill.unread_tokens)
        return rule.decide(call, reserved, decodes, cached, may_keep)

    def stays(self, call: Call, prefill: Endpoint) -> bool:
        """Whether the call would not be split now, if this engine were chosen to read it. Nothing changes by the question."""
        fixed = self._rule.fixed
        if fixed is not None:
            return fixed.taken is not Taken.SPLIT
        eligible = self._endpoints.eligible(call.model)
        too_long = eligible.uneven and may_be_too_long(call, eligible.shortest)
        decodes, may_keep = _decodes(call, prefill, eligible, too_long)
        if not decodes:
            return True
        cached = self._cached_for_decode(call)
        tokens = unread = call.prompt_tokens
        if self._prefixes is not None and (self._decode_asks or eligible.several_read):
            # As `reserve` does.
            unread -= self._prefixes.matched(call).get(prefill.instance.id, 0)
        if cached and may_keep and prefill.instance.role is BOTH:
            cached = _with_readers(cached, call, prefill, unread)
        # The rule looks at an engine that has the call. The end of a reservation counts as work:
        # a frozen engine would look well for as long as calls come.
        latency = prefill.latency
        overlooked, latency.overlooked = latency.overlooked, 0
        prefill.calls += 1
        prefill.tokens += tokens
        prefill.unread_tokens += unread
        prefill.own_unread_squares += unread * unread
        try:
            return not self._rule.would_split(call, prefill, decodes, cached, may_keep)
        finally:
            prefill.own_unread_squares -= unread * unread
            prefill.unread_tokens -= unread
            prefill.tokens -= tokens
            prefill.calls -= 1
            latency.overlooked = overlooked

    def works(self, instance: Instance, *, lately: bool = False) -> bool:
        """Whether an engine answers probes, and is not known to stand still."""
        endpoint = self._by_id.get(instance.id)
        if endpoint is None or not endpoint.up or endpoint.stuck:
            return False
        return endpoint.worked_lately or not lately

    def reserve(
        self,
        role: Role,
        call: Call,
        *,
        avoid: Collection[str] = (),
        peer: Instance | None = None,
        reads: bool | None = None,
        alone: bool = False,
        among: Collection[str] = (),
        with_room: bool = False,
    ) -> Reservation:
        """An instance of the role, not in `avoid`, that can pair with the peer.

        `among`: one of these, if any of them is left and has room for the call; empty for no matter which.
        `reads`: whether it computes the prompt; None for what the role says.
        `alone`: whether it will do even if there is none that it can be paired with.
        `with_room`: none will do in which the call has no room, where it has some in one of those in `avoid`.

        Raises UnknownModel, BadRequest, NoInstance.
        """
        model = call.model
        eligible = self._eligible_sets.get(model) or self._endpoints.eligible(model)
        if not eligible.disaggregated and role is not PLAIN and not alone:
            # Also for prefill: it would work, and keep its blocks, for no decode.
            if self.told is not None:
                self._tell(self.told, call, role, (), None, avoid, peer)
            raise _no_pair(eligible)
        endpoints = eligible.up[role]
        if call.at:
            endpoints = [c for c in endpoints if c.instance.id == call.at]
        if avoid:
            endpoints = [c for c in endpoints if c.instance.id not in avoid]
            if role is PREFILL:
                endpoints = _with_partners(endpoints, eligible, avoid) or endpoints
        if peer is not None and (eligible.mixed or peer.role is BOTH):
            endpoints = _partners(endpoints, eligible, peer)
        if not endpoints:
            if self.told is not None:
                self._tell(self.told, call, role, (), None, avoid, peer)
            raise _nobody(f"no {role.value} engine is")
        too_long = eligible.shortest > 0 and may_be_too_long(call, eligible.shortest)
        if too_long:
            reads_only = role is PREFILL and not alone
            if among and role is DECODE:
                endpoints = _beside_named(endpoints, eligible, among, avoid, peer)
            left = endpoints
            endpoints = self._with_room(call, endpoints, eligible, reads_only, avoid)
            if (avoid and not call.at) and (
                refused_by_all(call, left, eligible.model, reads_only)
                or (with_room and not self._as_roomy(call, endpoints, eligible, role, peer, among))
            ):
                if self.told is not None:
                    self._tell(self.told, call, role, (), None, avoid, peer)
                raise _nobody(f"no {role.value} engine that has room for the call is")
        if among:
            endpoints = [c for c in endpoints if c.instance.id in among] or endpoints
        if eligible.careful:
            endpoints = self._endpoints.admitted(endpoints)
        if self.places is not None and len(endpoints) > 1 and role is not ENCODE:
            most = self.places[role is not PREFILL]
            for one in endpoints:
                # Most have fewer, whatever their calls are.
                if one.calls >= most:
                    endpoints = _with_places(endpoints, role, most)
                    break
        one, partners = endpoints[0], None
        if len(endpoints) > 1:
            policy = self._policy(role, call) if self._of_models else self._policies[role]
            if peer is not None:
                one = policy.choose_beside(call, endpoints, peer)
            else:
                if eligible.placed and role is PREFILL:
                    partners = self._partners(call, eligible, avoid, too_long)
                if partners is not None:
                    one = policy.choose_ahead(call, endpoints, partners)
                else:
                    one = policy.choose(call, endpoints)
        if self.told is not None:
            self._tell(self.told, call, role, endpoints, one, avoid, peer, partners, among)
        if reads is None:
            reads = role is not DECODE
        update = None
        # What decode is handed is of no use, unless decode is chosen by it, the rule asks for it, or it
        # may be prefill;
        # and what prefill reads is not where it is the only one.
        if self._prefixes is not None and (
            self._decode_asks or (eligible.several_read and (reads or one.instance.role is BOTH))
        ):
            prefixes = self._prefixes
            # Empty where the prompt is too short for an engine to have some of it.
            if prefixes.blocks_of(call) if call.blocks is None else call.blocks:
                update = PrefixUpdate(prefixes, call, one, reads=reads)
            elif reads:
                prefixes.read_tokens += call.prompt_tokens
        prefills = role is PREFILL
        freed = self.freed if reads or prefills else None
        if role is DECODE:
            watches = self._rule.watches
            return Reservation(
                one,
                call.prompt_tokens,
                reads,
                not call.streams,
                watches,
                freed,
                update,
                self._worked,
            )
        return Reservation(
            one, call.prompt_tokens, reads, False, False, freed, update, self._worked, prefills
        )

    def _with_room(
        self,
        call: Call,
        endpoints: Sequence[Endpoint],
        eligible: EligibleSet,
        reads_only: bool,
        avoid: Collection[str],
    ) -> Sequence[Endpoint]:
        """Raises ContextTooLong."""
        model, longest = eligible.model, 0 if call.at else eligible.longest
        found = long_enough(call, endpoints, model, longest, reads_only)
        if not reads_only or len(found) == 1:
            return found
        decodes = eligible.up[DECODE]
        decodes = [c for c in decodes if c.instance.id not in avoid] or decodes
        fixed = self._rule.fixed
        may_keep = fixed is None or fixed.taken is not _SPLIT
        return with_room_behind(call, found, decodes, model, may_keep)

    def _as_roomy(
        self,
        call: Call,
        endpoints: Sequence[Endpoint],
        eligible: EligibleSet,
        role: Role,
        peer: Instance | None,
        among: Collection[str],
    ) -> bool:
        """Whether any of these would be left for its room, if none were avoided."""
        everyone = eligible.up[role]
        if peer is not None:
            everyone = _partners(everyone, eligible, peer)
        if among and role is DECODE:
            everyone = _beside_named(everyone, eligible, among, (), peer)
        roomy = self._with_room(call, everyone, eligible, role is PREFILL, ())
        ids = {c.instance.id for c in roomy}
        return any(c.instance.id in ids for c in endpoints)

    def _partners(
        self, call: Call, eligible: EligibleSet, avoid: Collection[str], too_long: bool
    ) -> Partners | None:
        """For the prefill engine of the best pair; decode is then chosen beside it."""
        decodes = eligible.up[DECODE]
        if avoid:
            decodes = [c for c in decodes if c.instance.id not in avoid]
        if too_long and decodes:
            decodes = long_enough(call, decodes, eligible.model)
        if self.places is not None:
            decodes = _with_places(decodes, DECODE, self.places[1])
        return self._policy(DECODE, call).partners(call, decodes) if decodes else None

    def _tell(
        self,
        told: Callable[[Call, DecisionTrace], None],
        call: Call,
        role: Role,
        endpoints: Sequence[Endpoint],
        one: Endpoint | None,
        avoid: Collection[str],
        peer: Instance | None,
        partners: Partners | None = None,
        named: Collection[str] = (),
    ) -> None:
        """Before the chosen one's account has the call, so that scores are those it was chosen by."""
        most = None
        if self.places is not None and role is not ENCODE:
            most = self.places[role is not PREFILL]
        eligible = self._endpoints.eligible(call.model)
        # Where all are alike, room leaves none out.
        too_long = eligible.uneven and may_be_too_long(call, eligible.shortest)
        others = left_out(
            self._endpoints, endpoints, role, call, avoid, peer, named, most, too_long
        )
        policy = ""
        considered: list[Weighed] = []
        rule: Steps = ()
        if one is not None and len(endpoints) > 1:
            chooses = self._policy(role, call)
            policy = chooses.name or type(chooses).__name__
            among = shown(endpoints, one)
            if partners is None:
                considered.extend(chooses.explain(call, among, peer))
            else:
                considered.extend(chooses.explain_ahead(call, among, partners))
            rule = chooses.rule(call, among, peer)
        elif one is not None:
            why = CHOSEN_BEFORE if one.instance.id in named else ONLY_ONE
            considered.append(Weighed(one.instance.id, why=why))
        more = len(endpoints) - len(considered) + max(0, len(others) - MOST_SHOWN)
        chosen = "" if one is None else one.instance.id
        told(
            call,
            DecisionTrace(role, policy, chosen, considered, others[:MOST_SHOWN], more, rule),
        )

    def _cached_for_decode(self, call: Call) -> Mapping[str, int]:
        """Instance id -> tokens of the prompt, whatever decode is chosen by."""
        if self._prefixes is None or not self._rule.reads_cached:
            return NOTHING_CACHED
        return self._prefixes.matched(call)

    def excuse(self, endpoints: Collection[str]) -> None:
        self._endpoints.excuse(endpoints)

    def report(self, instance: Instance, error: GatewayError | None) -> None:
        """An engine that refuses, or in which calls keep failing, gets no more for a while."""
        if error is not None:
            self._endpoints.failed(instance.id, cause_of(error))
            return
        endpoint = self._by_id.get(instance.id)
        if endpoint is not None:
            ended_well(endpoint, self._worked)


def _no_pair(eligible: EligibleSet) -> NoInstance:
    prefill, decode = eligible.up[PREFILL], eligible.up[DECODE]
    for role in (PREFILL, DECODE):
        if not eligible.up[role]:
            return _nobody(f"no {role.value} engine is")
    of_prefill, of_decode = (
        {c.instance.protocol: c.instance.generation for c in some} for some in (prefill, decode)
    )
    for protocol in of_prefill.keys() & of_decode.keys() & GENERATIONS_APART:
        if of_prefill[protocol] == of_decode[protocol]:
            # Halves of different pairs.
            continue
        return GenerationsDiffer(
            f"prefill engines speak {protocol} ({of_prefill[protocol]}), "
            f"decode engines {protocol} ({of_decode[protocol]})"
        )
    return _nobody("no prefill and decode engines that work together are")


def _nobody(who_is: str) -> NoInstance:
    return NoInstance(f"{who_is} available", retry_after_seconds=RETRY_AFTER_SECONDS)


def _with_partners(
    prefill: Sequence[Endpoint], eligible: EligibleSet, avoid: Collection[str]
) -> list[Endpoint]:
    """Those that leave a choice of decode instances other than the avoided ones."""
    decode = [c.instance for c in eligible.up[DECODE] if c.instance.id not in avoid]
    return [c for c in prefill if any(_pairs(c.instance, other) for other in decode)]


def _partners(
    endpoints: Sequence[Endpoint], eligible: EligibleSet, peer: Instance
) -> Sequence[Endpoint]:
    """Those that can pair with the peer: all of them, unless there is something to match."""
    if eligible.mixed or peer.role is BOTH:
        return [c for c in endpoints if _pairs(c.instance, peer)]
    return endpoints


def _beside_named(
    endpoints: Sequence[Endpoint],
    eligible: EligibleSet,
    named: Collection[str],
    avoid: Collection[str],
    peer: Instance | None,
) -> Sequence[Endpoint]:
    """Those that speak as the named do, and the named: by these it was decided that the call has room there.

    A reader of both roles may be in a pair as the one that reads alone, and answer a call itself all the same.
    """
    readers = [c for c in eligible.up[PREFILL] if c.instance.id in named and c.serves(DECODE)]
    of_decode = [c for c in eligible.up[DECODE] if c.instance.id in named]
    speak = {c.instance.speaks for c in (*readers, *of_decode)}
    found = [c for c in endpoints if c.instance.speaks in speak]
    there = {c.instance.id for c in found}.union(avoid, () if peer is None else (peer.id,))
    return [*found, *[c for c in readers if c.instance.id not in there]] or endpoints


def _decodes(
    call: Call, prefill: Endpoint, eligible: EligibleSet, too_long: bool
) -> tuple[Sequence[Endpoint], bool]:
    """Those that could follow the prefill engine, and whether it may keep the call itself, if it can answer.

    None, where it alone has room for the call; and it may not, where they have room and it has none.
    """
    decodes = _partners(eligible.up[DECODE], eligible, prefill.instance)
    if not too_long:
        return decodes, True
    if prefill.instance.role is BOTH and prefill.serves(DECODE):
        found = long_enough(call, [*decodes, prefill], eligible.model)
        others = [one for one in found if one is not prefill]
        return others, len(others) < len(found)
    return long_enough(call, decodes, eligible.model), False


def _with_readers(
    cached: Mapping[str, int], call: Call, prefill: Endpoint, unread: int
) -> Mapping[str, int]:
    """With what the reader had of the prompt, all of which is on its way there."""
    return {**cached, prefill.instance.id: call.prompt_tokens - unread}


def _with_places(endpoints: Sequence[Endpoint], role: Role, most: float) -> Sequence[Endpoint]:
    """Those that have fewer calls; all of them where none has, as who did not wait for a place has none elsewhere either."""
    return [one for one in endpoints if calls_as(role, one) < most] or endpoints


def _pairs(one: Instance, other: Instance) -> bool:
    return one.id != other.id and one.speaks == other.speaks
