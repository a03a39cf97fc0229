"""Pass of a prefill that a peer asked for, from P's first worker to the others.

The first worker gets the prompt from D and sends it to its own API (prefill_call.py). As a request it
reaches every worker, and all but the first see only its kv_transfer_params, which any client could have
sent; so these carry the key, the readers, and what D lends, under a seal that only the workers can make.

    {do_remote_decode: true, pdgate_prefill: id, pdgate_pass: {key, readers, lent, seal}}
"""

import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pdgate.engine.hand_over.two_sided import ForReaders
from pdgate.transfer.messenger.messages import Lent

PASS: Final = "pdgate_pass"
SECRET_BYTES: Final = 32


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


class Passes:
    def __init__(self, secret: bytes) -> None:
        """`secret`: what the workers of the engine have, and no other process."""
        self._secret = secret

    def issue(self, prefill_id: str, whose: ForReaders, lent: Lent | None = None) -> dict[str, Any]:
        """`lent`: what the first of its readers lends."""
        says = {
            "key": whose.key,
            "readers": list(whose.readers),
            "lent": msgspec.to_builtins(lent),
        }
        return {PASS: {**says, "seal": self._seal(prefill_id, says)}}

    def read(
        self, prefill_id: str, params: Mapping[str, Any]
    ) -> tuple[ForReaders, Lent | None] | None:
        """Return what a pass grants; None for one that no worker of this engine has issued for this prefill."""
        match params.get(PASS):
            case {"key": str(key), "readers": list(readers), "lent": lent, "seal": str(seal)}:
                says = {"key": key, "readers": readers, "lent": lent}
                if hmac.compare_digest(seal.encode(), self._seal(prefill_id, says).encode()):
                    return ForReaders(key, tuple(readers)), msgspec.convert(lent, Lent | None)
        return None

    def _seal(self, prefill_id: str, says: Mapping[str, Any]) -> str:
        sealed = json.dumps([prefill_id, says], sort_keys=True).encode()
        return hmac.new(self._secret, sealed, "sha256").hexdigest()
