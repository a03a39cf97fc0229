from collections.abc import Sequence
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as some

from pdgate.protocols.call import CHAT, Call
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.prefix.index import PrefixIndex, PrefixUpdate

TOKENS = 128


def prompt(*blocks: int, more_tokens: int = 0) -> Call:
    """A call whose prompt has these blocks, and a rest that fills none."""
    tokens = len(blocks) * TOKENS + more_tokens
    return Call("c", "c-1", CHAT, {}, prompt_tokens=tokens, blocks=blocks)


def tokens(**blocks: int) -> dict[str, int]:
    return {instance_id: count * TOKENS for instance_id, count in blocks.items()}


def endpoint(instance_id: str) -> Endpoint:
    return Endpoint(Instance(instance_id, "http://127.0.0.1:1", Role.PREFILL, "plain"))


def knowing(most_blocks: int = 100, **prompts: Sequence[int]) -> PrefixIndex:
    """An index in which instances, of so many blocks each, have been sent these prompts."""
    index = PrefixIndex()
    for instance_id, blocks in prompts.items():
        index.capacity(instance_id, most_blocks * TOKENS)
        index.routed(prompt(*blocks), instance_id)
    return index


def test_an_instance_has_what_it_was_sent() -> None:
    index = knowing(p0=(1, 2, 3), p1=(1, 2), p2=(7,))

    assert index.matched(prompt(1, 2, 3)) == tokens(p0=3, p1=2)
    assert index.matched(prompt(1, 2, 3, 4)) == tokens(p0=3, p1=2)
    assert index.matched(prompt(1, 9)) == tokens(p0=1, p1=1)
    assert index.matched(prompt(7)) == tokens(p2=1)
    assert index.matched(prompt(5)) == {}
    assert index.matched(prompt()) == {}


def test_several_prompts_that_begin_alike_are_told_apart() -> None:
    index = knowing(p0=(1, 2, 3, 4), p1=(1, 2, 3, 4))
    index.routed(prompt(1, 2, 30, 40), "p1")
    index.routed(prompt(1, 20), "p0")

    assert index.matched(prompt(1, 2, 3, 4)) == tokens(p0=4, p1=4)
    assert index.matched(prompt(1, 2, 30, 40, 50)) == tokens(p0=2, p1=4)
    assert index.matched(prompt(1, 20)) == tokens(p0=2, p1=1)


def test_nobody_has_more_of_a_prompt_than_the_prompt() -> None:
    """Tools fill a block that is not whole, and estimates are estimates."""
    index = knowing(p0=(1, 2))
    short = Call("c", "c-1", CHAT, {}, prompt_tokens=200, blocks=(1, 2))

    assert index.matched(short) == {"p0": 200}
    assert index.cached_share(short, endpoint("p0")) == 1.0


def test_a_share_is_of_the_whole_prompt() -> None:
    index = knowing(p0=(1, 2))

    assert index.cached_share(prompt(1, 2, more_tokens=256), endpoint("p0")) == 0.5
    assert index.cached_share(prompt(1, 2), endpoint("p1")) == 0.0
    assert index.cached_share(prompt(), endpoint("p0")) == 0.0


def test_an_instance_is_believed_to_keep_no_more_than_fits() -> None:
    """What it used last stays, and of a prompt the beginning."""
    index = knowing(most_blocks=4, p0=(1, 2, 3))
    index.routed(prompt(1, 20), "p0")
    assert index.matched(prompt(1, 2, 3)) == tokens(p0=3)

    index.routed(prompt(5), "p0")

    assert index.matched(prompt(1, 2, 3)) == tokens(p0=2)
    assert index.matched(prompt(1, 20)) == tokens(p0=2)
    assert index.evictions == 1


def test_what_is_used_again_is_kept_longer() -> None:
    index = knowing(most_blocks=3, p0=(1,))
    index.routed(prompt(2), "p0")
    index.routed(prompt(3), "p0")
    index.routed(prompt(1), "p0")
    index.routed(prompt(4), "p0")

    assert index.matched(prompt(2)) == {}
    assert index.matched(prompt(1)) == tokens(p0=1)


def test_what_one_instance_forgets_others_keep() -> None:
    index = knowing(p0=(1, 2, 3), p1=(1, 2, 3))

    index.forget("p0")

    assert index.matched(prompt(1, 2, 3)) == tokens(p1=3)
    index.forget("p1")
    assert index.matched(prompt(1, 2, 3)) == {}
    index.forget("unheard-of")


def test_a_leg_that_fails_leaves_what_was_known_before_it() -> None:
    index = knowing(p0=(1, 2))
    call = prompt(1, 2, 3, 4)

    had = index.routed(call, "p0")
    assert index.matched(call) == tokens(p0=4)
    index.unrouted(call, "p0", had)

    assert had == 2 * TOKENS
    assert index.matched(call) == tokens(p0=2)


def test_a_leg_that_fails_leaves_what_came_to_be_there_meanwhile() -> None:
    """Its own end of the prompt goes, and what it has in common with calls that were read, or are to be, stays."""
    index, at = knowing(p0=(7,)), endpoint("p0")
    first, read, waits = prompt(1, 2, 3), prompt(1, 2, 4), prompt(1, 5)
    updates = [PrefixUpdate(index, call, at, reads=True) for call in (first, read, waits)]
    updates[1].confirm()

    updates[0].take_back()
    assert index.matched(first) == tokens(p0=2)
    assert index.matched(read) == tokens(p0=3)
    updates[2].take_back()
    assert index.matched(waits) == tokens(p0=1)


def test_legs_that_all_fail_leave_nothing() -> None:
    """In whichever order: what each found was a guess made for another."""
    for order in permutations(range(3)):
        index, at = knowing(p0=(1,)), endpoint("p0")
        calls = prompt(1, 2, 3, 4), prompt(1, 2, 3, 5), prompt(1, 2, 6)
        updates = [PrefixUpdate(index, call, at, reads=True) for call in calls]
        for number in order:
            updates[number].take_back()

        for call in calls:
            assert index.matched(call) == tokens(p0=1)


PROMPTS = some.lists(some.integers(0, 2), min_size=1, max_size=5).map(
    lambda turns: [hash(tuple(turns[: n + 1])) & ((1 << 64) - 1) for n in range(len(turns))]
)
STEPS = some.lists(some.tuples(PROMPTS, some.integers(0, 9), some.booleans()), max_size=60)


def settled(
    indexes: Sequence[PrefixIndex], steps: Sequence[tuple[list[int], int, bool]]
) -> list[list[int]]:
    """Sends prompts to one engine, by these indexes in turn; each proves to be there, or not, so many later. Returns those that did."""
    waiting: list[tuple[int, bool, list[int], PrefixUpdate]] = []
    there = []
    for now, (blocks, after, reads) in enumerate((*steps, *[([0], 0, False)] * 10)):
        index = indexes[now % len(indexes)]
        update = PrefixUpdate(index, prompt(*blocks), endpoint("p0"), reads=True)
        waiting.append((now + after, reads, blocks, update))
        for one in [one for one in waiting if one[0] <= now]:
            waiting.remove(one)
            if one[1]:
                one[3].confirm()
                there.append(one[2])
            else:
                one[3].take_back()
    return there


def longest(blocks: list[int], there: list[list[int]]) -> int:
    # A block stands for all before it.
    return max((len({*blocks} & {*one}) for one in there), default=0)


@given(STEPS)
def test_when_all_is_settled_an_engine_has_what_it_has_read(
    steps: list[tuple[list[int], int, bool]],
) -> None:
    index = PrefixIndex()
    there = settled([index], steps)

    for blocks, _, _ in steps:
        found = index.matched(prompt(*blocks)).get("p0", 0)
        assert found == longest(blocks, there) * TOKENS


@given(STEPS)
def test_so_it_has_where_several_processes_send(steps: list[tuple[list[int], int, bool]]) -> None:
    """No less; of what none has read in the end one may believe more, until the engine is sent others."""
    indexes = [PrefixIndex(), PrefixIndex()]
    for one, other in (indexes, reversed(indexes)):
        one.told.append(other.hear)
    there = settled(indexes, steps)

    for blocks, _, _ in steps:
        for index in indexes:
            assert index.matched(prompt(*blocks)).get("p0", 0) >= longest(blocks, there) * TOKENS


def test_what_engines_say_counts_beside_what_they_were_sent() -> None:
    index = knowing(p0=(1, 2))
    index.stored("p0", [1, 2, 3])
    index.stored("p1", [1])

    assert index.matched(prompt(1, 2, 3)) == tokens(p0=3, p1=1)
    index.lost("p0", [1, 2, 3, 4], kept=1)
    index.lost("p1", [1, 2], kept=1)
    assert index.matched(prompt(1, 2, 3)) == tokens(p0=1, p1=1)
    index.cleared("p0")
    assert index.matched(prompt(1, 2, 3)) == tokens(p1=1)


def test_blocks_of_which_an_engine_lacks_the_beginning_are_of_no_use() -> None:
    index = knowing(p0=(1, 2, 3))
    index.stored("p0", [1, 2, 3, 4, 5], first=3)
    index.stored("p1", [1, 2, 3, 4, 5], first=3)
    index.stored("p0", [1, 2, 8, 9], first=3)

    assert index.matched(prompt(1, 2, 3, 4, 5)) == tokens(p0=5)
    assert index.matched(prompt(1, 2, 8, 9)) == tokens(p0=2)


def test_an_answer_is_made_anew_when_something_has_changed() -> None:
    """Whoever asks twice for one call is told the same, without another look."""
    index, call = knowing(p0=(1,)), prompt(1, 2)
    told = index.matched(call)
    assert index.matched(call) is told

    index.routed(call, "p1")
    assert index.matched(call) == tokens(p0=1, p1=2)
    index.stored("p0", [1, 2])
    assert index.matched(call) == tokens(p0=2, p1=2)
    index.lost("p0", [1, 2], kept=1)
    assert index.matched(call) == tokens(p0=1, p1=2)
    index.capacity("p1", TOKENS)
    assert index.matched(call) == tokens(p0=1, p1=1)
    index.cleared("p1")
    assert index.matched(call) == tokens(p0=1)
    index.clear()
    assert index.matched(call) == {}


def test_an_answer_is_made_anew_when_what_is_learnt_makes_something_else_forgotten() -> None:
    index = knowing(most_blocks=3, p0=(1, 2))
    index.matched(prompt(1, 2))
    long = prompt(7, 8, 9, 10)

    index.routed(long, "p0")

    assert index.matched(long) == tokens(p0=3)


def test_the_hit_rate_is_that_of_the_engines_that_read() -> None:
    index = knowing(p0=(1, 2))
    index.routed(prompt(1, 2, 3, 4), "p0")
    index.routed(prompt(1, 2, 3, 4), "d0", reads=False)

    assert (index.read_tokens, index.cached_tokens) == (6 * TOKENS, 2 * TOKENS)


def test_a_leg_that_came_to_nothing_is_not_in_the_hit_rate() -> None:
    index, call = knowing(p0=(1, 2)), prompt(1, 2, 3)
    before = index.read_tokens, index.cached_tokens

    update = PrefixUpdate(index, call, endpoint("p0"), reads=True)
    assert update.cached_tokens == 2 * TOKENS
    update.take_back()

    assert (index.read_tokens, index.cached_tokens) == before
    assert index.matched(call) == tokens(p0=2)


def test_it_takes_no_more_than_its_bytes() -> None:
    index = PrefixIndex(max_bytes=100_000)
    for number in range(0, 100_000, 100):
        index.routed(prompt(*range(number, number + 10)), "p0")

    assert 50_000 < index.bytes <= 100_000
    assert index.evictions
    assert index.blocks


def test_blocks_may_come_from_elsewhere() -> None:
    """As in a simulation, whose calls have no bytes."""
    index = PrefixIndex(lambda call: [len(call.id)], block_tokens=512)
    call = Call("long", "a", CHAT, {}, prompt_tokens=1000)
    index.routed(call, "p0")

    assert index.matched(call) == {"p0": 512}
