"""vllm-kvt: decode asks prefill itself.

    staged   prefill  {do_remote_decode: true}                         keeps its pages
             decode   {remote_host, remote_port, do_remote_prefill}    asks for them
    batch    decode   {remote_host, remote_port}                       sends the prompt over

Both are keyed by the X-Request-Id; the address is that of the KV side, not of HTTP. In
batch, prefill computes all tokens but the last, samples nothing, and writes each layer's
pages into decode's as soon as it is computed; in staged, all at once. A load that fails
ends as HTTP 200 with finish_reason "abort". A decode that gives up tells prefill.

In staged, decode may ask before prefill knows the request. KVT answers 404 then, and is
asked again after growing waits; here the question stays open for as long as those waits
would last together, and is answered at the moment that prefill knows.

Source: Llumnix v1, HybridConnector with the kvt backend; its rpc is spoken in the
words of messages.py here.
"""

import uuid
from collections.abc import Sequence
from typing import ClassVar

from pdgate.engine.connector import Arrival, Load, Plan
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.lending import borrowed
from pdgate.engine.hand_over.two_sided import TwoSided, wire_id
from pdgate.protocols.instance import Role
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.messages import Lent
from pdgate.transfer.messenger.source import Source


class KvtHandOver(TwoSided):
    takes_ranks: ClassVar = True
    load_failure: ClassVar = "abort"
    pushes: ClassVar = True
    gives_states: ClassVar = True
    meet_seconds: ClassVar = 2.0
    """How long a question for a request that prefill does not know stays open in staged."""

    def plan(self, arrival: Arrival) -> Plan:
        params = arrival.params or {}
        if read.flag(params, "do_remote_decode"):
            return self.keep_for(arrival.id, wire_id(arrival))
        if _local(params) or "remote_host" not in params:
            if read.flag(params, "do_remote_prefill"):
                raise ValueError("do_remote_prefill needs remote_host and remote_port")
            return None
        staged = read.flag(params, "do_remote_prefill")
        source = Source(
            read.host(params, "remote_host"),
            read.port(params, "remote_port"),
            wire_id(arrival),
            wait_seconds=self.meet_seconds if staged else self.settings.lease_seconds,
            prompt=() if staged else tuple(arrival.prompt),
            push=True,
            # In staged, prefill has computed the last token as well, and decode does so again: it has its own.
            context=not staged and self.settings.takes_states,
            context_needed=False,
        )
        return self.load_from(source, len(arrival.prompt) - 1)

    def submit(
        self, key: str, prompt: Sequence[int], lent: Lent | None, readers: Sequence[str]
    ) -> None:
        if not self.settings.may(Role.PREFILL):
            raise HandOverError(Why.UNSUPPORTED, f"this engine's role is {self.settings.role}")
        if len(prompt) < 2:
            raise HandOverError(Why.TOO_SHORT, "a prompt of one token has nothing to hand over")
        request_id = f"kvt-{uuid.uuid4().hex}"
        try:
            keep = self.keep_for(request_id, key, readers)
            tokens = len(prompt) - 1
            load = self.borrow(lent, tokens, readers[0])
            self.core.submit_prefill(request_id, prompt, tokens, keep, load)
        except ValueError as error:
            self._offers.drop(request_id, str(error))
            self._pushes.drop(request_id, str(error))
            raise HandOverError(Why.UNSUPPORTED, str(error)) from None

    def borrow(self, lent: Lent | None, tokens: int, peer: str) -> Load | None:
        """What to read of a prompt that this peer has in part; None to compute all of it. Raises ValueError."""
        if lent is None or not self.settings.borrows:
            return None
        return borrowed(lent, tokens, peer)


def _local(params: read.Fields) -> bool:
    if params.get("ali_llumnix_disagg") is not None and not read.flag(params, "ali_llumnix_disagg"):
        return True
    return read.flag(params, "do_local_prefill")
