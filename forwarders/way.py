"""What of its protocol a split call goes by: found once per instance, asked for by every call."""

from dataclasses import replace

from pdgate.forwarders.base import Forwarder, Mode
from pdgate.forwarders.crossing import way_across
from pdgate.forwarders.ownership import KvRules


class Way:
    """How calls cross from (and to) an instance: its protocol's forwarder, and the mode.

    Attributes:
        cross: How to cross both engines at once; found once, as isinstance of an ABC is slow.
        kv: What becomes of the KV of a split call; None where nothing is kept for anybody.
        prefill_can_answer, decode_can_prefill: What the forwarder says. Of a class an attribute is
            ten times as dear as of an object.
    """

    __slots__ = ("cross", "decode_can_prefill", "forwarder", "kv", "mode", "prefill_can_answer")

    def __init__(
        self, forwarder: Forwarder, mode: Mode, lease_seconds: float | None = None
    ) -> None:
        """`lease_seconds`: how its engines are set up, where that is not the protocol's default."""
        self.forwarder = forwarder
        self.mode = mode
        self.cross = way_across(forwarder)
        self.kv = _rules(forwarder.kv, lease_seconds)
        self.prefill_can_answer = forwarder.prefill_can_answer
        self.decode_can_prefill = forwarder.decode_can_prefill


def _rules(of_protocol: KvRules, lease_seconds: float | None) -> KvRules | None:
    if not of_protocol.keeps:
        return None
    if lease_seconds is None:
        return of_protocol
    return replace(of_protocol, lease_seconds=lease_seconds)
