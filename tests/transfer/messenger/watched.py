"""A node that says how far its peers have come."""

import queue
from typing import Any

from pdgate.transfer.messenger.asked import Asked
from pdgate.transfer.messenger.line import MessengerLine
from pdgate.transfer.messenger.offers import Offer
from pdgate.transfer.messenger.push import OutgoingPush
from tests.transfer.messenger.nodes import SECONDS, Node


class Prefill(Node):
    """Says which states its peers have reached.

    Attributes:
        reached: "asked" for a push whose other half may be missing, "begun" when P writes
            from now on, "lent" when pages are being read.
    """

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.reached: queue.Queue[str] = queue.Queue()
        ask, wait = self.pushes.ask, self.offers.wait

        def watch_ask(line: MessengerLine, asked: Asked) -> OutgoingPush:
            push = ask(line, asked)
            self.reached.put("begun" if push.began else "asked")
            return push

        def watch_wait(*words: Any) -> Offer:
            offer = wait(*words)
            self.reached.put("lent")
            return offer

        self.pushes.ask = watch_ask  # type: ignore[method-assign]
        self.offers.wait = watch_wait  # type: ignore[method-assign, assignment]

    def until(self, state: str) -> None:
        assert self.reached.get(timeout=SECONDS) == state
