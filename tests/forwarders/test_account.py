"""What the gateway remembers of the calls that an engine got, to compare it with the engine's count."""

from pdgate.protocols.errors import EngineFailed
from pdgate.scheduling.disaggregation.rules import Never
from pdgate.scheduling.endpoints import Endpoints
from tests.support.answers import piece, prefilled
from tests.support.scripted import D0, P0, Crossing, Scripted, chat


def counted(endpoints: Endpoints, instance_id: str) -> tuple[int, int]:
    """(calls handed over to it, calls whose prompt was its own to compute)"""
    endpoint = endpoints.get(instance_id)
    assert endpoint is not None
    return endpoint.handed_over, endpoint.whole_calls


async def test_a_call_that_is_split_is_prefills_to_compute_and_handed_over_to_decode() -> None:
    crossing = Crossing(Scripted(p0=prefilled(), d0=[piece("a")]), P0, D0)

    await crossing.ask(chat())

    assert counted(crossing.endpoints, "p0") == (0, 1)
    assert counted(crossing.endpoints, "d0") == (1, 0)


async def test_a_call_that_is_not_split_is_decodes_own() -> None:
    crossing = Crossing(Scripted(d0=[piece("a")]), P0, D0, rule=Never())

    await crossing.ask(chat())

    assert counted(crossing.endpoints, "d0") == (0, 1)


async def test_nothing_is_handed_over_to_an_engine_that_fails() -> None:
    crossing = Crossing(Scripted(p0=prefilled(), d0=EngineFailed("500")), P0, D0, max_attempts=1)

    await crossing.ask(chat())

    assert counted(crossing.endpoints, "d0") == (0, 0)
