"""What a step says that it did, which is what its least duration is made of."""

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.pace import Faults
from pdgate.engine.request import Sampling
from pdgate.engine.scheduler import StepLimits
from pdgate.engine.work import Done, Options, Work
from tests.support.engine_cores import ask, layout, tiny

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
