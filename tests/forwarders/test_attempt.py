"""An attempt that ends keeps nothing: no engine, and no KV."""

from math import inf
from typing import Self

import pytest

from pdgate.forwarders import registry
from pdgate.forwarders.base import Answer, Mode
from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.forwarders.execution import Attempt, Execution
from pdgate.forwarders.kv_lease import KvLease, KvLedger, KvRules, KvState
from pdgate.forwarders.record import LOCAL, Record
from pdgate.forwarders.retry import FRESH, RetryPolicy
from pdgate.forwarders.route import Route, Way
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.watch import StreamWatch
from tests.support.scripted import D0, P0, Scripted, chat, fleet, scheduler


class Noted:
    """An engine that is reserved; `slips`: a bug of ours in what is done at its end."""

    def __init__(self, instance: Instance, *, slips: bool = False) -> None:
        self.instance = instance
        self.told: list[str] = []
        self._slips = slips

    @property
    def unread_tokens(self) -> int:
        raise AssertionError("nothing gives way")

    @property
    def reading_seconds(self) -> float:
        raise AssertionError("its answer streams")

    def presume_read(self) -> None:
        raise AssertionError("its answer streams")

    def presume_end(self) -> None:
        raise AssertionError("its answer streams")

    def drop_unread(self) -> None:
        raise AssertionError("nothing gives way")

    def has_read(self, seconds: float) -> StreamWatch | None:
        raise AssertionError("nothing was read")

    def read(self, seconds: float) -> None:
        raise AssertionError("nothing was read")

    def was_read(self) -> None:
        raise AssertionError("nothing was read")

    def has_loaded(self, seconds: float) -> StreamWatch | None:
        raise AssertionError("nothing was loaded")

    def worked(self) -> None:
        raise AssertionError("nothing was asked")

    def handed_over(self) -> None:
        raise AssertionError("nothing was handed over")

    def end(self) -> None:
        self._over("end")

    def withdraw(self) -> None:
        self._over("withdraw")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        raise AssertionError("it is no block")

    def _over(self, how: str) -> None:
        self.told.append(how)
        if self._slips:
            raise RuntimeError("a bug")


async def nowhere(answer: Answer, record: Record) -> None:
    raise AssertionError("nothing is delivered")


def attempt() -> Attempt:
    call, engines = chat(), scheduler(fleet(P0, D0))
    way = Way(registry.load(P0.protocol, Mode.BATCH, ""), Mode.BATCH)
    policy = RetryPolicy(3, OnPrefillFailure.RETRY, inf)
    execution = Execution(engines, lambda _: way, Scripted(), policy=policy)
    one = engines.reserve(Role.DECODE, call)
    route = Route(LOCAL, P0.protocol, Mode.BATCH, way, None, one, Role.DECODE)
    return Attempt(execution, route, FRESH, call, Record(call), nowhere)


HOW = pytest.mark.parametrize(
    ("error", "how"), [(None, "end"), (EngineFailed("500"), "withdraw")], ids=["well", "failed"]
)


@HOW
def test_engines_are_free_and_withdrawn_from_if_it_came_to_nothing(
    error: EngineFailed | None, how: str
) -> None:
    made = attempt()
    prefill = made.reading = Noted(P0)
    decode = made.answering = Noted(D0)

    made.end(error)

    assert (prefill.told, decode.told) == ([how], [how])


@HOW
def test_a_bug_at_the_end_of_one_engine_keeps_neither_the_other_nor_the_kv(
    error: EngineFailed | None, how: str
) -> None:
    made, ledger = attempt(), KvLedger()
    prefill = made.reading = Noted(P0)
    made.answering = Noted(D0, slips=True)
    made.kv = KvLease(KvRules(30.0), P0.id, ledger)
    made.kv.prefilled(0.0)

    with pytest.raises(RuntimeError, match="a bug"):
        made.end(error)

    assert prefill.told == [how]
    assert made.kv.state in (KvState.RELEASED, KvState.LOST)
    assert ledger.held == 0
