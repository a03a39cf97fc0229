"""Our connector on a decode engine whose loans go wrong, in the way that a file says (PDGATE_TEST_FAULT names it).

Named as `kv_connector_module_path`. Without the file all is well. It says one of these:

    nobody          the loan names a port at which nothing listens
    another life    the loan names an engine that has been started anew since
    cut             the connection breaks when the reader asks
    called in       the loan is called in while it is being read
    held            the reader waits for as long as this engine lives
    other blocks    the first block is lent in place of each (swapped ones would do as well: a key says its place)
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pdgate.engine.hand_over.lending import Lending
from pdgate.engine.vllm.connector import PdgateConnector
from pdgate.transfer.messenger.messages import Lent
from pdgate.transfer.messenger.offers import Offer, Offers, ReleasedOffer

__all__ = ["PdgateConnector"]

NO_PORT = 1
_lend, _wait, _release = Lending.lend, Offers.wait, Offers.release


@dataclass(frozen=True)
class Fault:
    file: Path

    def __str__(self) -> str:
        return self.file.read_text() if self.file.exists() else ""


FAULT = Fault(Path(os.environ["PDGATE_TEST_FAULT"]))


def lend(lending: Lending, key: str, block_ids: Sequence[int], tokens: int, after: Any) -> Lent:
    fault = str(FAULT)
    named = [block_ids[0]] * len(block_ids) if fault == "other blocks" else block_ids
    lent = _lend(lending, key, named, tokens, after)
    if fault == "nobody":
        return msgspec.structs.replace(lent, port=NO_PORT)
    if fault == "another life":
        return msgspec.structs.replace(lent, engine_id="another life")
    return lent


def wait(offers: Offers, *asked: Any) -> Offer:
    fault = str(FAULT)
    if fault == "cut":
        raise ConnectionResetError("as the test wants it")
    if fault == "held":
        threading.Event().wait()
    return _wait(offers, *asked)


def release(offers: Offers, key: str, offer_id: str, reader: object) -> ReleasedOffer:
    if str(FAULT) == "called in":
        offers.forget(key)
    return _release(offers, key, offer_id, reader)


Lending.lend = lend  # type: ignore[method-assign, assignment]
Offers.wait = wait  # type: ignore[method-assign, assignment]
Offers.release = release  # type: ignore[method-assign, assignment]
