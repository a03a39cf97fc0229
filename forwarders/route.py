"""Route of a call: where it goes, and how its protocol crosses two engines. Interpreted: a Struct.

Way     of an instance: the forwarder of its protocol, how it crosses two engines, what becomes of its KV
Route   of one attempt: the engines that routing.py reserved, and the decision behind them
"""

from dataclasses import replace

import msgspec

from pdgate.forwarders.base import Delegation, Forwarder, HandOff, Leg, Mode, Rendezvous, Reserved
from pdgate.forwarders.kv_lease import KvRules
from pdgate.protocols.instance import Role
from pdgate.scheduling.disaggregation import Decision


class Way:
    """What of its protocol a call goes by at an instance; made once for each.

    Attributes:
        hand_off, rendezvous, delegation: The forwarder as what it is, if it can cross two engines in this
            mode: one of them at most. Found once, as isinstance of an ABC is slow.
        asks_each: The forwarder has reasons of its own for not splitting a call.
        joins, releases: It has words for engines before the first call, and behind one.
        staged: Decode is chosen when prefill has answered.
        kv: What becomes of the KV of a split call; None where none is kept.
        prefill_can_answer, decode_can_prefill, ids_field: What the forwarder says. Of a class an attribute is
            ten times as dear as of an object.
    """

    __slots__ = (
        "asks_each", "decode_can_prefill", "delegation", "forwarder", "hand_off", "ids_field", "joins", "kv", "mode",
        "prefill_can_answer", "releases", "rendezvous", "staged",
    )  # fmt: skip

    def __init__(
        self, forwarder: Forwarder, mode: Mode, lease_seconds: float | None = None
    ) -> None:
        """`lease_seconds`: how its engines are set up, where that is not the protocol's default."""
        self.forwarder = forwarder
        self.mode = mode
        self.asks_each = type(forwarder).why_local is not Forwarder.why_local
        self.staged = mode is Mode.STAGED
        self.hand_off = forwarder if isinstance(forwarder, HandOff) else None
        self.ids_field = forwarder.ids_field if isinstance(forwarder, HandOff) else ""
        hands = type(forwarder) if isinstance(forwarder, HandOff) else HandOff
        self.joins = hands.join is not HandOff.join
        self.releases = hands.release is not HandOff.release
        together = not self.staged
        self.rendezvous = forwarder if together and isinstance(forwarder, Rendezvous) else None
        self.delegation = forwarder if together and isinstance(forwarder, Delegation) else None
        self.kv = _rules(forwarder.kv, lease_seconds)
        self.prefill_can_answer = forwarder.prefill_can_answer
        self.decode_can_prefill = forwarder.decode_can_prefill


class Route(msgspec.Struct, frozen=True, gc=False):
    """The engines of one attempt, reserved, and why these.

    Attributes:
        path: DISAGGREGATED, LOCAL, ... (record.py).
        prefill: Reads the prompt; None where one engine has the whole call.
        answering: Its answer is the client's; None where it is chosen when prefill has answered.
        role: That it answers in.
        leg: The whole call, for one engine; None for a split call, whose legs execution.py makes.
    """

    path: str
    protocol: str
    mode: str
    way: Way
    prefill: Reserved | None
    answering: Reserved | None
    role: Role
    leg: Leg | None = None
    decision: Decision | None = None


def _rules(of_protocol: KvRules, lease_seconds: float | None) -> KvRules | None:
    if not of_protocol.keeps:
        return None
    if lease_seconds is None:
        return of_protocol
    return replace(of_protocol, lease_seconds=lease_seconds)
