"""The tree says what a table of all blocks would say, and takes the bytes that it says."""

import tracemalloc
from array import array
from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.prefix.tree import Tree

INSTANCES = ("p0", "p1", "d0")
PLENTY = 1 << 40


def chained(letters: str) -> "array[int]":
    """Blocks as they are: each stands for itself and all before it."""
    return array("Q", [hash(letters[: end + 1]) % 2**64 for end in range(len(letters))])


class Table:
    """What each instance has, the simple way."""

    def __init__(self) -> None:
        self.of: dict[str, set[int]] = {}

    def matched(self, blocks: Sequence[int]) -> dict[str, int]:
        found = {}
        for instance_id, theirs in self.of.items():
            same = [block in theirs for block in blocks]
            if same and same[0]:
                found[instance_id] = (*same, False).index(False)
        return found


def matched(tree: Tree, blocks: Sequence[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for count, owners in tree.matched(blocks):
        assert not found or set(owners) <= set(found), "who has more has what is before it"
        found.update(dict.fromkeys(owners, count))
    return found


def sound(tree: Tree) -> None:
    """What it counts is what is there."""
    nodes, going = [], [tree._root]
    while going:
        node = going.pop()
        for first, child in node.children.items():
            assert child.parent is node
            assert child.run[0] == first
            assert child.owners
            assert node is tree._root or set(child.owners) <= set(node.owners)
            nodes.append(child)
            going.append(child)
    assert tree.blocks == sum(len(node.run) for node in nodes)
    for instance_id, holder in tree._holders.items():
        assert set(holder.nodes) == {node for node in nodes if instance_id in node.owners}
        assert holder.blocks == sum(len(node.run) for node in holder.nodes)
        assert holder.capacity is None or holder.blocks <= holder.capacity
        order = list(holder.nodes)
        for node in order:
            parent = node.parent
            assert parent is tree._root or order.index(node) < order.index(parent)  # type: ignore[arg-type]
    if not nodes and not tree._holders:
        assert tree.bytes == 0


prompts = st.text("ab", max_size=9).map(lambda text: "s" + text)
learnt = st.tuples(st.just("learn"), st.sampled_from(INSTANCES), prompts, st.just(0))
unlearnt = st.tuples(st.just("unlearn"), st.sampled_from(INSTANCES), prompts, st.integers(0, 9))
forgotten = st.tuples(st.just("forget"), st.sampled_from(INSTANCES), st.just(""), st.just(0))
steps = st.lists(st.one_of(learnt, learnt, learnt, unlearnt, forgotten), max_size=30)


@given(steps, prompts)
def test_it_says_what_a_table_of_all_blocks_says(
    done: list[tuple[str, str, str, int]], asked: str
) -> None:
    tree, table = Tree(PLENTY), Table()
    known: dict[str, set[str]] = {}
    for what, instance_id, letters, kept in done:
        theirs = known.setdefault(instance_id, set())
        if what == "learn":
            tree.learn(instance_id, chained(letters))
            theirs.update(letters[: end + 1] for end in range(len(letters)))
        elif what == "unlearn":
            tree.unlearn(instance_id, chained(letters), kept)
            if kept < len(letters):
                gone = letters[: kept + 1]
                theirs -= {one for one in theirs if one.startswith(gone)}
        else:
            tree.forget(instance_id)
            theirs.clear()
        table.of[instance_id] = {hash(one) % 2**64 for one in theirs}
        sound(tree)

    has = table.matched(chained(asked))
    assert matched(tree, chained(asked)) == has
    for count in range(len(asked) + 1):
        holding = {one for one in INSTANCES if tree.holds(one, chained(asked), count)}
        assert holding == {one for one in INSTANCES if has.get(one, 0) >= count}
    for instance_id in INSTANCES:
        tree.forget(instance_id)
    sound(tree)
    assert tree.blocks == tree.bytes == 0


@given(steps, st.integers(1, 12))
def test_a_capacity_is_held_and_what_was_used_last_is_kept(
    done: list[tuple[str, str, str, int]], capacity: int
) -> None:
    tree = Tree(PLENTY)
    for instance_id in INSTANCES:
        tree.limit(instance_id, capacity)
    for what, instance_id, letters, _ in done:
        if what == "learn":
            tree.learn(instance_id, chained(letters))
            sound(tree)
            # Alone in its node, it keeps as much of it as fits.
            had = matched(tree, chained(letters)).get(instance_id, 0)
            assert had == len(letters) or tree.evictions


def test_a_smaller_capacity_is_held_at_once() -> None:
    tree = Tree(PLENTY)
    tree.learn("p0", chained("abcdefgh"))

    tree.limit("p0", 3)

    assert tree._holders["p0"].blocks == 3
    assert matched(tree, chained("abcdefgh")) == {"p0": 3}
    tree.limit("p0", None)
    tree.learn("p0", chained("abcdefgh"))
    assert tree._holders["p0"].blocks == 8


def conversations(random: Random, count: int) -> list["array[int]"]:
    """Prompts that begin with one of four system prompts, and go on for some turns."""
    systems = ["".join(random.choices("abcdef", k=20)) for _ in range(4)]
    prompts: list[array[int]] = []
    while len(prompts) < count:
        said = random.choice(systems)
        for _ in range(random.randint(1, 4)):
            said += "".join(random.choices("abcdef", k=random.randint(1, 30)))
            prompts.append(chained(said))
    return prompts


def test_its_bytes_are_held_and_are_those_that_it_takes() -> None:
    random, most = Random(7), 400_000
    prompts = conversations(random, 1500)
    ids = [f"engine-{number}" for number in range(20)]
    # As many frames as there are from where it takes something up to here.
    tracemalloc.start(8)
    try:
        tree = Tree(most)
        for prompt in prompts:
            tree.learn(random.choice(ids), prompt)
            assert tree.bytes <= most
        of_all = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # What other threads of this process take meanwhile is not the tree's.
    own = of_all.filter_traces([tracemalloc.Filter(True, __file__, all_frames=True)])
    taken = sum(trace.size for trace in own.traces)

    assert tree.evictions
    assert 0.7 < taken / tree.bytes < 1.1, (taken, tree.bytes)
    sound(tree)


def test_who_has_most_gives_up_first() -> None:
    """So that an engine with little traffic is not forgotten for the sake of a busy one."""
    tree = Tree(60_000)
    tree.learn("quiet", chained("zzzz"))
    for number in range(1000):
        tree.learn("busy", array("Q", range(number * 100, number * 100 + 10)))

    assert matched(tree, chained("zzzz")) == {"quiet": 4}
    assert tree.evictions
    assert tree._holders["busy"].blocks > 100


def test_what_is_too_large_for_it_is_forgotten_whole() -> None:
    tree = Tree(2_000)
    tree.learn("p0", array("Q", range(10_000)))

    assert tree.bytes <= 2_000
    assert matched(tree, array("Q", range(10))) == {}


def test_a_long_conversation_of_one_engine_stays_one_run() -> None:
    tree = Tree(PLENTY)
    said = "s"
    for turn in range(50):
        said += str(turn) * 3
        tree.learn("p0", chained(said))

    assert len(tree._holders["p0"].nodes) == 1
    assert matched(tree, chained(said)) == {"p0": len(said)}
