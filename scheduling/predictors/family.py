"""Instances that are alike: the same models, role and protocol.

Who has not shown yet how fast it is, is taken to be as fast as the middle one of those who have;
so a new instance is neither avoided nor overrun. And how long prompts bend is a matter of the
model, so all learn it together.

Nothing is learnt twice for this: the middle one is looked for when somebody asks who knows
nothing, and then kept until somebody new is known, or has been asked for often.
"""

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Final

from pdgate.scheduling.predictors.bend import Bend

if TYPE_CHECKING:
    from pdgate.scheduling.predictors.predicts import Predicts
    from pdgate.scheduling.predictors.speed import Speed

TYPICAL_TOKENS: Final = 1000
"""Of the prompt by which speeds are compared."""

LOOK_EVERY: Final = 1000
"""Questions, as the middle one changes its mind, too."""


class Families:
    """Of a fleet."""

    def __init__(self) -> None:
        self._families: dict[Hashable, Family] = {}

    def put(self, one: "Predicts", kind: Hashable) -> None:
        """`kind`: what those who are alike have in common."""
        family = self._families.get(kind)
        if family is None:
            family = self._families[kind] = Family()
        if one.family is not family:
            one.belongs_to(family)
            self._tidy()

    def remove(self, one: "Predicts") -> None:
        one.belongs_to(Family())
        self._tidy()

    def _tidy(self) -> None:
        for kind in [kind for kind, family in self._families.items() if not family.members]:
            del self._families[kind]


class Family:
    """
    Attributes:
        bend: Of all of them.
        members: Those that are.
    """

    __slots__ = ("_asked", "_loading", "_reading", "_stepping", "bend", "members")

    def __init__(self) -> None:
        self.bend = Bend()
        self.members: list[Predicts] = []
        self._asked = 0
        self._reading: Speed | None = None
        self._loading: Speed | None = None
        self._stepping: Predicts | None = None

    def join(self, one: "Predicts") -> None:
        self.members.append(one)
        self.changed()

    def leave(self, one: "Predicts") -> None:
        self.members.remove(one)
        self.changed()

    def changed(self) -> None:
        """Somebody is known, or gone: who is in the middle is looked for anew."""
        self._asked = 0

    def reading(self) -> "Speed | None":
        """Of somebody typical; None while nobody is known."""
        self._look()
        return self._reading

    def loading(self) -> "Speed | None":
        self._look()
        return self._loading

    def stepping(self) -> "Predicts | None":
        self._look()
        return self._stepping

    def _look(self) -> None:
        if self._asked % LOOK_EVERY == 0:
            self._reading = _middle(member.reading for member in self.members)
            self._loading = _middle(member.loading for member in self.members)
            known = [(member.pace.typical, member) for member in self.members if member.pace.known]
            known.sort(key=lambda one: one[0])
            self._stepping = known[len(known) // 2][1] if known else None
        self._asked += 1


def _middle(speeds: "Iterable[Speed]") -> "Speed | None":
    known = [
        (seconds, speed)
        for speed in speeds
        if (seconds := speed.expect(TYPICAL_TOKENS)) is not None
    ]
    known.sort(key=lambda one: one[0])
    return known[len(known) // 2][1] if known else None
