"""Pass of a prefill that a peer asked for, from P's first worker to the others.

The first worker gets the prompt from D and sends it to its own API (prefill_call.py). As a request it
reaches every worker, and all but the first see only its kv_transfer_params, which anybody could have
sent; so these carry the key and the readers under a seal that only the workers can make.

    {do_remote_decode: true, pdgate_prefill: id, pdgate_pass: {key, readers, seal}}
"""

import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdgate.engine.hand_over.two_sided import ForReaders

PASS: Final = "pdgate_pass"
SECRET_BYTES: Final = 32


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


class Passes:
    def __init__(self, secret: bytes) -> None:
        """`secret`: what the workers of the engine have, and no other process."""
        self._secret = secret

    def issue(self, prefill_id: str, whose: ForReaders) -> dict[str, Any]:
        seal = self._seal(prefill_id, whose.key, whose.readers)
        return {PASS: {"key": whose.key, "readers": list(whose.readers), "seal": seal}}

    def read(self, prefill_id: str, params: Mapping[str, Any]) -> ForReaders | None:
        """Return what a pass grants; None for one that no worker of this engine has issued for this prefill."""
        match params.get(PASS):
            case {"key": str(key), "readers": list(readers), "seal": str(seal)} if all(
                isinstance(reader, str) for reader in readers
            ):
                expected = self._seal(prefill_id, key, readers)
                if hmac.compare_digest(seal.encode(), expected.encode()):
                    return ForReaders(key, tuple(readers))
        return None

    def _seal(self, prefill_id: str, key: str, readers: Sequence[str]) -> str:
        said = json.dumps([prefill_id, key, list(readers)]).encode()
        return hmac.new(self._secret, said, "sha256").hexdigest()
