"""What a step says that it did, which is what its least duration is made of, and whose pages it takes."""

from collections.abc import Callable
from typing import Any

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.pace import Faults
from pdgate.engine.request import Sampling
from pdgate.engine.scheduler import StepLimits
from pdgate.engine.work import Done, Options, Work
from tests.support.engine_cores import ask, layout, tiny
from tests.support.fake_connector import FakeConnector, Meeting

THREE_TOKENS = Sampling(max_tokens=3, temperature=0, ignore_eos=True)


def test_a_step_tells_apart_what_it_reads_and_what_it_decodes() -> None:
    """A prompt of seven tokens, five a step; then another of two beside its answer."""
    where = layout()
    memory = memoryview(bytearray(where.total_bytes))
    work = Work(
        tiny(),
        where,
        KvMemory(where, [memory]),
        Options(StepLimits(max_seqs=4, max_tokens=5)),
        Faults(),
    )
    prompt = ask("long", "abcdef", THREE_TOKENS)
    assert len(prompt.prompt) == 7
    work.submit(prompt)

    assert work.step() == Done(prompts=0, decodes=0, read=5, idle=False)
    assert work.step() == Done(prompts=1, decodes=0, read=2, idle=False)
    work.submit(ask("short", "a", THREE_TOKENS))
    assert work.step() == Done(prompts=1, decodes=1, read=2, idle=False)
    assert work.step() == Done(prompts=0, decodes=2, read=0, idle=False)
    assert work.step() == Done(prompts=0, decodes=1, read=0, idle=False)
    assert work.step() == Done(idle=True)


class Read(FakeConnector):
    """Of all that it keeps a peer is in the middle.

    Attributes:
        broken_off: Requests whose readers must not go on.
    """

    broken_off: list[str]

    def dropped(self, request_id: str, why: str) -> bool:
        return True

    def break_off(self, request_id: str) -> None:
        self.broken_off.append(request_id)


def test_pages_that_a_step_needs_are_not_read_any_longer() -> None:
    """Those of a lease that ends are: nobody needs them yet."""
    now = 0.0
    work, connector = read_from(blocks=2, now=lambda: now)
    work.submit(ask("kept", "abc", THREE_TOKENS, params={"keep": True}))
    while not work.step().idle:
        pass
    now = 1.0
    work.end_leases()
    assert work.stats.leases_ended == 1
    assert connector.broken_off == []
    work.release("kept")

    work.submit(ask("preempted", "abcdef", THREE_TOKENS, params={"keep": True}))
    while not work.step().idle:
        pass

    assert connector.broken_off == ["preempted"]


def read_from(blocks: int, now: Callable[[], float]) -> tuple[Work, Read]:
    where = layout(blocks, block_tokens=4)
    memory = memoryview(bytearray(where.total_bytes))
    options = Options(StepLimits(max_seqs=4, max_tokens=8))
    work = Work(tiny(), where, KvMemory(where, [memory]), options, Faults(), now)
    core: Any = work
    connector = Read(core, memory, Meeting(where), lease_seconds=0.5)
    connector.broken_off = []
    work.hooks.connector = connector
    return work, connector
