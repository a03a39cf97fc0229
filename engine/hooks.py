"""Calls of a connector that the core survives.

Connectors are written by others and speak with strangers, so whatever one of their hooks
raises costs the request it was about and no other.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pdgate.engine.connector import Arrival, Connector, EngineLost, Keep, Load, Pages, Plan
from pdgate.engine.job import StepChunk
from pdgate.engine.request import Request

log = logging.getLogger(__name__)

DIED: Final = "the engine core died"


class HookFailed(Exception):
    """The connector raised what it must not; the log has it."""


class Hooks:
    """Calls of the connector; without one every request is computed here, and only `plan` is called."""

    def __init__(self) -> None:
        self.connector: Connector | None = None

    def plan(self, request: Request, cached_tokens: Callable[[], int]) -> Plan:
        """Raises ValueError if the client is to blame, HookFailed."""
        if self.connector is None:
            return None
        arrival = Arrival(
            id=request.id,
            wire_id=request.wire_id,
            prompt=request.prompt,
            params=request.params,
            body=request.body,
            index=request.index,
            cached_tokens=cached_tokens,
        )
        try:
            plan = self.connector.plan(arrival)
        except ValueError:
            raise
        except Exception as error:  # see above
            raise _logged("plan", request.id, error) from error
        if isinstance(plan, Load) and not 0 <= plan.tokens <= len(request.prompt):
            raise ValueError(
                f"{plan.tokens} tokens of a prompt of {len(request.prompt)} cannot be loaded"
            )
        return plan

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        """Raises HookFailed."""
        try:
            self._there.start(request_id, load, pages, skip_tokens)
        except Exception as error:  # see above
            raise _logged("start to load", request_id, error) from error

    def kept(
        self, request_id: str, keep: Keep, pages: Pages, first_token: int | None, finish: str
    ) -> Mapping[str, Any] | None:
        """Raises HookFailed."""
        try:
            return self._there.kept(request_id, keep, pages, first_token, finish)
        except Exception as error:  # see above
            raise _logged("keep", request_id, error) from error

    def cancel(self, request_id: str) -> None:
        _guarded(lambda: self._there.cancel(request_id), request_id)

    def watch(self, chunks: Sequence[StepChunk]) -> Callable[[int], None] | None:
        """Function to call behind each layer of a step with these chunks of requests to be kept."""
        if not chunks:
            return None

        def filled(layer: int) -> None:
            for chunk in chunks:
                self.layer_computed(chunk.job.id, layer, chunk.job.blocks, chunk.end)

        return filled

    def layer_computed(
        self, request_id: str, layer: int, block_ids: Sequence[int], tokens: int
    ) -> None:
        """A connector that fails here hands nothing over, which is then its own to say."""
        _guarded(
            lambda: self._there.layer_computed(request_id, layer, block_ids, tokens), request_id
        )

    def dropped(self, request_id: str, why: str) -> bool:
        """True if the pages are still in use."""
        in_use = False

        def drop() -> None:
            nonlocal in_use
            in_use = bool(self._there.dropped(request_id, why))

        _guarded(drop, request_id)
        return in_use

    def break_off(self, request_id: str) -> None:
        _guarded(lambda: self._there.break_off(request_id), request_id)

    @property
    def failed_load_is_abort(self) -> bool:
        return self._there.load_failure == "abort"

    @property
    def _there(self) -> Connector:
        """Loads and keeps are only ever planned by a connector."""
        assert self.connector is not None
        return self.connector


def _guarded(hook: Callable[[], None], request_id: str) -> None:
    """What hangs on it is the connector's own."""
    try:
        hook()
    except Exception:  # see above
        log.exception("the connector failed at %s", request_id)


def _logged(what: str, request_id: str, error: Exception) -> HookFailed:
    log.exception("the connector could not %s %s", what, request_id)
    return HookFailed(DIED if isinstance(error, EngineLost) else "the KV connector failed")
