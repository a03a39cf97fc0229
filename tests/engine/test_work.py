"""What a step says that it did, which is what its least duration is made of, and whose pages it takes."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

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
        meeting: Of it and that peer.
        broken_off: Requests whose readers must not go on.
        in_use: The peer is still there.
        breaks: It fails when it has offered something.
    """

    meeting: Meeting
    broken_off: list[str]
    in_use: bool = True
    breaks: bool = False

    def kept(self, *offered: Any) -> Mapping[str, Any] | None:
        params = super().kept(*offered)
        if self.breaks:
            raise RuntimeError("a bug")
        return params

    def dropped(self, request_id: str, why: str) -> bool:
        super().dropped(request_id, why)
        return self.in_use

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


@pytest.mark.parametrize("blocks", [2, 4])
def test_readers_whose_lease_is_over_end_when_a_prompt_needs_their_pages(blocks: int) -> None:
    """It waited until they were late, for up to ten seconds."""
    now = 0.0
    work, connector = read_from(blocks, lambda: now)
    work.submit(ask("kept", "abc", THREE_TOKENS, params={"keep": True}))
    while not work.step().idle:
        pass
    now = 1.0
    work.end_leases()

    work.submit(ask("next", "abc", THREE_TOKENS))
    for _ in range(3):
        work.step()
    assert connector.broken_off == (["kept"] if blocks == 2 else [])

    work.release("kept")
    assert work.step().idle == (blocks == 4)


def test_what_is_preempted_and_dropped_again_gives_all_of_its_pages_back() -> None:
    """Its first pages are being read when its client leaves; they were never free again."""
    work, connector = read_from(blocks=2, now=lambda: 0.0)
    work.submit(ask("big", "abcdef", THREE_TOKENS, params={"keep": True}))
    while not work.step().idle:
        pass
    assert connector.broken_off == ["big"]
    assert work.gauges.blocks_used == 2

    work.abort("big")
    work.release("big")

    assert [name for name, _ in connector.meeting.dropped] == ["big", "big"]
    assert work.gauges.blocks_used == 0


@pytest.mark.parametrize("in_use", [False, True])
def test_pages_that_could_not_be_offered_are_free_when_no_reader_has_them(in_use: bool) -> None:
    """They were at once, the offer stood, and its reader got the next request's KV as good."""
    work, connector = read_from(blocks=2, now=lambda: 0.0)
    connector.breaks, connector.in_use = True, in_use
    work.submit(ask("kept", "abc", THREE_TOKENS, params={"keep": True}))
    while not work.step().idle:
        pass

    assert connector.meeting.dropped == [("kept", "it could not be offered")]
    assert work.gauges.blocks_used == (2 if in_use else 0)
    work.release("kept")
    assert work.gauges.blocks_used == 0


def read_from(blocks: int, now: Callable[[], float]) -> tuple[Work, Read]:
    where = layout(blocks, block_tokens=4)
    memory = memoryview(bytearray(where.total_bytes))
    options = Options(StepLimits(max_seqs=4, max_tokens=8))
    work = Work(tiny(), where, KvMemory(where, [memory]), options, Faults(), now)
    core: Any = work
    meeting = Meeting(where)
    connector = Read(core, memory, meeting, lease_seconds=0.5)
    connector.meeting, connector.broken_off = meeting, []
    work.hooks.connector = connector
    return work, connector
