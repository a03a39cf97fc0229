"""State of what is controlled, as all processes of a gateway, and its replicas, are to know it. Pure.

version   grows with each change; a process says which one it has taken (board.py)
held      model -> why its calls wait: "paused", "updating", "asleep:weights", ...
void      model -> version at which all KV of its engines became void
aborts    model -> version at which its calls that run were to end, and which of them
left_out  ids of engines whose weights may be others: they get no calls
failed    those of them that failed in the update that is under way, in several steps
"""

from collections.abc import Collection, Iterable
from typing import Final

from pydantic import Field

from pdgate.gateway.config.setting import Section

PAUSED: Final = "paused"
FROZEN: Final = "frozen"
"""Paused with calls that run kept in the engines."""
UPDATING: Final = "updating"
ASLEEP: Final = "asleep:"


class AbortedCalls(Section):
    """
    Attributes:
        ids: Of calls; none for all of the model.
    """

    version: int
    ids: tuple[str, ...] = ()


class HeldState(Section):
    version: int = 0
    held: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    void: dict[str, int] = Field(default_factory=dict)
    aborts: dict[str, AbortedCalls] = Field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def reasons(self, models: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(why for model in models for why in self.held.get(model, ())))

    def hold(self, models: Iterable[str], *why: str) -> "HeldState":
        held = dict(self.held)
        for model in models:
            held[model] = tuple(dict.fromkeys((*held.get(model, ()), *why)))
        return self._next(held=held)

    def release(self, models: Iterable[str], why: Collection[str]) -> "HeldState":
        """State without these reasons; models with none left go on."""
        held = dict(self.held)
        for model in models:
            left = tuple(one for one in held.pop(model, ()) if one not in why)
            if left:
                held[model] = left
        return self._next(held=held)

    def without_kv(self, models: Iterable[str]) -> "HeldState":
        return self._next(void={**self.void, **dict.fromkeys(models, self.version + 1)})

    def abort(self, models: Iterable[str], ids: tuple[str, ...] = ()) -> "HeldState":
        ended = AbortedCalls(version=self.version + 1, ids=ids)
        return self._next(aborts={**self.aborts, **dict.fromkeys(models, ended)})

    def begin_update(self) -> "HeldState":
        """What failed before counts no more: it may succeed this time."""
        return self._next(failed=())

    def updated(self, good: Collection[str], bad: Collection[str]) -> "HeldState":
        """`good` have what they were sent; an engine that has failed in a step before stays out."""
        failed = dict.fromkeys((*self.failed, *bad))
        out = dict.fromkeys((*self.left_out, *bad))
        left = tuple(one for one in out if one not in good or one in failed)
        return self._next(left_out=left, failed=tuple(failed))

    def let_in(self, instance_id: str) -> "HeldState":
        left = tuple(one for one in self.left_out if one != instance_id)
        return self._next(left_out=left)

    def _next(self, **changed: object) -> "HeldState":
        return self.model_copy(update={**changed, "version": self.version + 1})
