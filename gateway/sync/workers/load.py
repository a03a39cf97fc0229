"""The engines' accounts of all workers: ours written at each change, theirs read before a choice.

    reservation --> Shared.changed --> our table             a few words written, at once
    policy <-- accounts <-- take_in <-- others' tables       before each choice
                 look: workers and engines that are there    every LOOK_SECONDS

Taking in costs about 0.2 us for an engine and worker. With many of both it is not done before every
choice, but so often that it takes about a fiftieth of the time; that is what a view may be
behind: 2 engines and 1 other worker 20 us, 32 engines and 7 others 2.2 ms. Where there is no choice
(the only engine of its role, metrics) an account is LOOK_SECONDS old at most.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final

from pdgate.gateway.sync.workers.neighbourhood import Neighbourhood
from pdgate.gateway.sync.workers.policy import LooksAround
from pdgate.gateway.sync.workers.table import key_of
from pdgate.scheduling import policy
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.neighbours import SharedEndpoint
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext

LOOK_SECONDS: Final = 0.1
"""How long a worker that was killed still counts, at most. To wake up costs far more than to look:
five times as often took 1 % of a core from a worker that had nothing else to do."""
SPACING_SECONDS: Final = 10e-6
"""Between two times of taking in, for each engine and other worker."""

INSTANCE: Final = "instance"
NEVER: Final = -1
"""An edition of the neighbourhood that there is not."""


class SharedLoad:
    """
    Attributes:
        neighbourhood: Where others may share more.
    """

    def __init__(
        self, folder: Path, endpoints: Endpoints, clock: Callable[[], float] = monotonic
    ) -> None:
        """Raises OSError if there is no room in the folder."""
        self.neighbourhood = Neighbourhood(folder)
        self._endpoints = endpoints
        self._clock = clock
        self._ours: dict[str, tuple[Endpoint, SharedEndpoint]] = {}
        self._theirs: list[tuple[Endpoint, SharedEndpoint, list[memoryview]]] = []
        self._spacing = self._next = 0.0
        self._edition = NEVER
        self.look()

    def policy(self, name: str, context: PolicyContext) -> Policy:
        """Raises LookupError, TypeError, as `policy.load`."""
        return LooksAround(policy.load(name, context), self.take_in)

    def take_in(self) -> None:
        """What the others have in flight goes to the accounts, unless it did so just now."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._spacing
        if self.neighbourhood.edition() != self._edition:
            self._match()
        for endpoint, shared, rows in self._theirs:
            calls = tokens = unread_tokens = answering = prefills = 0
            for row in rows:
                of_one = row.tolist()
                calls += of_one[0]
                tokens += of_one[1]
                unread_tokens += of_one[2]
                answering += of_one[3]
                prefills += of_one[4]
            shared.take_in(endpoint, shared.near, calls, tokens, unread_tokens, answering, prefills)

    def look(self) -> None:
        """Which workers and engines are there now."""
        # Calls at those that are removed take no place elsewhere, whichever worker has them.
        there = (*self._endpoints.removed, *self._endpoints)
        known = {endpoint.instance.id: endpoint for endpoint in there}
        for instance_id, (endpoint, _) in list(self._ours.items()):
            if known.get(instance_id) is not endpoint:
                self._forget(instance_id)
        for instance_id, endpoint in known.items():
            if instance_id not in self._ours:
                self._share(instance_id, endpoint)
        self.neighbourhood.look()
        self._next = 0.0
        self.take_in()

    async def run(self) -> None:
        """Run until cancelled; `close` is for the end of the process."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Accounts are this worker's own again, and the others hear no more of it."""
        for instance_id in list(self._ours):
            self._forget(instance_id)
        self._theirs.clear()
        self.neighbourhood.close()

    def _share(self, instance_id: str, endpoint: Endpoint) -> None:
        row = self.neighbourhood.give(key_of(INSTANCE, instance_id))
        if row is not None:
            shared = SharedEndpoint.of(endpoint)
            shared.told = row
            self._ours[instance_id] = endpoint, shared
            self._edition = NEVER
            shared.changed(endpoint)

    def _forget(self, instance_id: str) -> None:
        endpoint, shared = self._ours.pop(instance_id)
        shared.take_in(endpoint, shared.near, 0, 0, 0, 0)
        shared.told = None
        self._edition = NEVER
        self.neighbourhood.take_back(key_of(INSTANCE, instance_id))

    def _match(self) -> None:
        """Which rows of the others are of which engine."""
        self._edition = self.neighbourhood.edition()
        theirs = self.neighbourhood.theirs
        self._theirs = [
            (endpoint, shared, theirs(key_of(INSTANCE, instance_id)))
            for instance_id, (endpoint, shared) in self._ours.items()
        ]
        self._spacing = SPACING_SECONDS * len(self._ours) * self.neighbourhood.others
