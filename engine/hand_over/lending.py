"""What decode has of a prompt already, from its prefix cache, lent to who computes the rest.

    decode                              prefill
      | prompt, and what of it is lent -> |
      | <--------- ask, read, release --- |  or computes it, if it cannot be had
      | <------------- KV of the rest --- |

Prefill computes only behind what it has read, so a load that ends well was read before. Other
loads end while somebody may be reading: their pages are used again, so the loan is called in
first, and the reader is told that what it has read is void.
"""

from collections.abc import Sequence

from pdgate.transfer.messenger.messages import Lent
from pdgate.transfer.messenger.offers import Offers


class Lending:
    def __init__(self, offers: Offers, engine_id: str, address: tuple[str, int]) -> None:
        """`address`: where our KV service is asked."""
        self._offers = offers
        self._engine_id = engine_id
        self._host, self._port = address

    def lend(self, key: str, block_ids: Sequence[int], tokens: int) -> Lent:
        """The first `tokens` of a prompt, in full blocks, until `call_in`."""
        name = _name(key)
        self._offers.expect(name, name)
        self._offers.put(name, block_ids, tokens, None)
        return Lent(self._host, self._port, self._engine_id, name, tokens)

    def call_in(self, key: str) -> None:
        """Before the pages may be used again; also of what was never lent, or has been read."""
        self._offers.forget(_name(key))


def _name(key: str) -> str:
    """An engine that is both has the prompt itself under `key`."""
    return f"{key} lent"
