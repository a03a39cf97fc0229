"""Loans: decode's cached beginning of a prompt, lent to the prefill engine that computes the rest.

    decode                              prefill
      | prompt, and what of it is lent -> |
      | <--------- ask, read, release --- |  or computes it, if it cannot be had
      | <------------- KV of the rest --- |

Prefill computes only behind what it has read, so a load that ends well was read before. Other
loads end while a peer may be reading: their pages are used again, so the loan is called in
first: the reader can read no more, and learns that what it has read is void.
"""

import secrets
import threading
from collections.abc import Sequence

from pdgate.engine.connector import Load
from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.messenger.messages import Lent
from pdgate.transfer.messenger.offers import Offers
from pdgate.transfer.messenger.source import Source


class Borrowed(Source):
    """What a decode engine lends; it calls it in by itself, so it needs no farewell."""


def borrowed(lent: Lent, tokens: int, peer: str) -> Load:
    """Reading of what `peer` lends of a prefill of so many tokens. Raises ValueError."""
    if not 0 < lent.tokens < tokens:
        raise ValueError(f"{lent.tokens} of {tokens} tokens are lent")
    source = Borrowed(
        lent.host,
        lent.port,
        lent.key,
        wait_seconds=0,
        engine_id=lent.engine_id,
        # No other may be named, whatever is found there.
        peer=peer,
    )
    return Load(lent.tokens, source)


def lent_by(load: Load) -> Lent:
    """What `borrowed` has made this load of."""
    source: Borrowed = load.ticket
    return Lent(source.host, source.port, source.engine_id, source.key, load.tokens)


class Lending:
    def __init__(self, offers: Offers, engine_id: str, address: tuple[str, int]) -> None:
        """`address`: where our KV service is asked."""
        self._offers = offers
        self._engine_id = engine_id
        self._host, self._port = address
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}

    def lend(
        self, key: str, block_ids: Sequence[int], tokens: int, after: DeviceEvent | None = None
    ) -> Lent:
        """The first `tokens` of a prompt, in full blocks, until `call_in`. They are there once `after` has happened."""
        # Not to be made from the other key, which those know who may not read this.
        name = f"lent {secrets.token_hex(16)}"
        with self._lock:
            self._names[key] = name
        self._offers.expect(name, name)
        self._offers.put(name, block_ids, tokens, None, after=after)
        return Lent(self._host, self._port, self._engine_id, name, tokens)

    def call_in(self, key: str) -> None:
        """Call pages in before they may be used again; also those that were never lent, or have been read."""
        with self._lock:
            name = self._names.pop(key, None)
        if name is not None:
            self._offers.forget(name)
