"""P's requests by uid: what of them may be looked up, and when their pages are free.

    expected --first layer computed--> begun --sampled--> kept
        |             '---- a lookup succeeds: leaving ----'  --all sent--> left (pages free)
        '-- dropped --> gone: a lookup gets the reason

With layers sent one by one a request may leave as soon as it has begun, and its token is
looked up afterwards; else once it is kept. No I/O; the caller holds one lock over all calls.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pdgate.engine.neuron.posts import CompletionToken, PostGate

MAX_REMEMBERED: Final = 4096


@dataclass(eq=False, slots=True)
class KeptRequest:
    """
    Attributes:
        prompt_tokens: What D gets the KV of.
        blocks: Of all prompt tokens, as soon as they are known.
        gates: One per layer: open when the whole prompt's KV of that layer is there.
        leaving: Of the transfer, once a lookup has succeeded.
        ending: Why it is of no use any more, though its pages are still read.
        dropped: The engine has taken its pages back.
        token_due: D was not told the token by lookup_all.
    """

    uid: str
    id: str
    prompt_tokens: int
    gates: Sequence[PostGate]
    blocks: tuple[int, ...] = ()
    kept: bool = False
    first_token: int | None = None
    leaving: CompletionToken | None = None
    ending: str = ""
    dropped: bool = False
    token_due: bool = False
    sent: bool = False


class Requests:
    """
    Args:
        layer_wise: Whether a request may leave before it is computed.
    """

    def __init__(self, layers: int, *, layer_wise: bool) -> None:
        self._layers = layers
        self._layer_wise = layer_wise
        self._by_uid: dict[str, KeptRequest] = {}
        self._by_id: dict[str, KeptRequest] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._unwanted: OrderedDict[str, bool] = OrderedDict()
        self._due: deque[KeptRequest] = deque()
        """Sent, and their tokens were still to be looked up: some askers are dead by now."""

    def expect(self, uid: str, request_id: str, prompt_tokens: int) -> bool:
        """False if D has said already that it does not need it. Raises ValueError if another
        live request has the uid.
        """
        if uid in self._by_uid:
            raise ValueError(f"another live request has the uid {uid!r}")
        if self._unwanted.pop(uid, False):
            return False
        gates = [PostGate(is_open=False) for _ in range(self._layers)]
        self._by_uid[uid] = self._by_id[request_id] = KeptRequest(
            uid, request_id, prompt_tokens, gates
        )
        self._gone.pop(uid, None)
        return True

    def unwanted(self, uid: str) -> None:
        """No lookup of this uid will come, which is not here yet."""
        if uid in self._gone:
            return
        self._unwanted[uid] = True
        if len(self._unwanted) > MAX_REMEMBERED:
            self._unwanted.popitem(last=False)

    def computed(self, request_id: str, layer: int, blocks: Sequence[int], tokens: int) -> bool:
        """The KV of so many tokens is in this layer's pages. Whether that changes anything."""
        one = self._by_id.get(request_id)
        if one is None or one.kept:
            return False
        if not one.blocks:
            one.blocks = tuple(blocks)
        if tokens < one.prompt_tokens:
            return False
        one.gates[layer].is_open = True
        return True

    def keep(self, request_id: str, blocks: Sequence[int], first_token: int | None) -> bool:
        """All is computed. False if the pages may go at once: sent already, or not wanted."""
        one = self._by_id.get(request_id)
        if one is None:
            return False
        one.kept = True
        one.first_token = first_token
        if one.leaving is None:
            one.blocks = tuple(blocks)
        for gate in one.gates:
            gate.is_open = True
        return not one.sent

    def ready(self, uid: str) -> KeptRequest | None:
        """The request, if it may leave now."""
        one = self._by_uid.get(uid)
        if one is None or one.leaving is not None:
            return None
        return one if one.kept or (self._layer_wise and one.blocks) else None

    def find(self, uid: str) -> KeptRequest | None:
        return self._by_uid.get(uid)

    def why_gone(self, uid: str) -> str | None:
        one = self._by_uid.get(uid)
        return (one.ending or None) if one is not None else self._gone.get(uid)

    def drop(self, request_id: str, why: str) -> KeptRequest | None:
        """The engine takes its pages back. The request, if it was still ours; while it
        leaves its pages are in use, and `left` has to be said.
        """
        one = self._by_id.get(request_id)
        if one is None:
            return None
        if one.sent:
            self.forget(one, why)
            return None
        if one.leaving is None:
            self.forget(one, why)
            return one
        one.ending = one.ending or why
        one.dropped = True
        # What is not computed is sent as it is, so that D does not wait; its token never follows.
        for gate in one.gates:
            gate.is_open = True
        return one

    def left(self, one: KeptRequest) -> None:
        """Note that no peer reads the request's pages any more."""
        one.sent = True
        if one.ending:
            self.forget(one, one.ending)
        elif not one.token_due:
            self.forget(one)
        else:
            self._due.append(one)
            if len(self._due) > MAX_REMEMBERED:
                self.forget(self._due.popleft())

    def forget(self, one: KeptRequest, why: str = "") -> None:
        if self._by_uid.get(one.uid) is one:
            del self._by_uid[one.uid]
        self._by_id.pop(one.id, None)
        if why:
            self._gone[one.uid] = why
            while len(self._gone) > MAX_REMEMBERED:
                self._gone.popitem(last=False)
