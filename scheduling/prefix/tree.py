"""Prefix tree: what each instance has, where prompts that begin alike share their beginning.

    node: run (1, 2, 3)      p0, p1, d0
      |-- run (4, 5)         p0
      |-- run (9, 10, 11)    p1, d0

A node is a run of blocks that the same instances have. An owner of a node has all before it. A
block's hash stands for all that comes before it, so whether a whole run agrees with a prompt is
decided by its last block, and where they part is found by bisection: a prompt of 250 blocks takes a
few looks, and a block 8 bytes.

Each instance keeps its nodes in the order in which they were used, a node before all that it
follows. So the oldest is always one that it has nothing behind, and what is forgotten is the end
of a prompt, as in an engine. What fills a cache beyond its capacity, or the tree beyond its
bytes, is forgotten so; for the tree's sake by the instance of which most is known.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

BLOCK_BYTES: Final = 8
NODE_BYTES: Final = 300
"""Of a node beside its run, its place among its siblings included; measured, as the next."""

HOLD_BYTES: Final = 150
"""Of an instance's having a node."""

HOLDER_BYTES: Final = 1200
"""Of an instance that has anything."""

GIVES_UP: Final = 16
"""One of so many parts of its blocks, before the instance that has most now is looked for."""


class Node:
    __slots__ = ("children", "owners", "parent", "run")

    def __init__(self, parent: "Node | None", run: "array[int]", owners: tuple[str, ...]) -> None:
        self.parent = parent
        self.run = run
        self.owners = owners
        self.children: dict[int, Node] = _NO_CHILDREN


_NO_CHILDREN: Final[dict[int, Node]] = {}
"""Never written to: most nodes have none, and an empty dictionary is larger than the node."""


class Holder:
    """One instance: the nodes that it has, the one used longest ago first.

    Attributes:
        alone: Owners of a node that no other instance has.
        capacity: Blocks that it can keep; None if that is not known.
        blocks: Of all its nodes.
    """

    __slots__ = ("alone", "blocks", "capacity", "nodes")

    def __init__(self, instance_id: str, capacity: int | None) -> None:
        # Of any length to the compiler, which would make other tuples of a pair or a single one.
        self.alone: tuple[str, ...] = (instance_id,)
        self.capacity = capacity
        self.nodes: OrderedDict[Node, None] = OrderedDict()
        self.blocks = 0


class Tree:
    """
    Attributes:
        bytes: That it takes, estimated.
        blocks: In it, each once however many instances have it.
        evictions: Blocks of instances that were forgotten for want of room.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._root = Node(None, array("Q"), ())
        self._root.children = {}
        self._holders: dict[str, Holder] = {}
        self._capacities: dict[str, int] = {}
        self._fullest: Holder | None = None
        self._fullest_keeps = 0
        self.bytes = 0
        self.blocks = 0
        self.evictions = 0

    def matched(self, blocks: Sequence[int]) -> list[tuple[int, tuple[str, ...]]]:
        """How many blocks of this prompt instances have, from least to most; all that have more
        are in each."""
        found = []
        children, at, count = self._root.children, 0, len(blocks)
        while at < count:
            node = children.get(blocks[at])
            if node is None:
                break
            run = node.run
            same = in_common(run, blocks, at)
            at += same
            found.append((at, node.owners))
            if same < len(run):
                break
            children = node.children
        return found

    def learn(self, instance_id: str, blocks: Sequence[int]) -> None:
        """The instance has these, from a prompt's first one on."""
        holder = self._holders.get(instance_id)
        if holder is None:
            holder = Holder(instance_id, self._capacities.get(instance_id))
            self._holders[instance_id] = holder
            self.bytes += HOLDER_BYTES
        nodes, node, at, count = holder.nodes, self._root, 0, len(blocks)
        path: list[Node] = []
        while at < count:
            child = node.children.get(blocks[at])
            if child is None:
                child = self._grow(holder, node, blocks, at)
                same = count - at
            else:
                same = in_common(child.run, blocks, at)
                # What it has more than this prompt it goes on having.
                if same < len(child.run) and not (child in nodes and at + same == count):
                    child = self._split(child, same)
                if child not in nodes:
                    self._own(holder, child)
            if child is not node:
                path.append(child)
            node = child
            at += same
        for node in reversed(path):
            nodes.move_to_end(node)
        capacity = holder.capacity
        if capacity is not None and holder.blocks > capacity:
            self._shrink(holder, capacity)
        while self.bytes > self._max_bytes and self._give_up():
            pass

    def holds(self, instance_id: str, blocks: Sequence[int], count: int) -> bool:
        """Whether the instance has so many of these, from the first on."""
        holder = self._holders.get(instance_id)
        node, at = self._root, 0
        while at < count:
            child = node.children.get(blocks[at])
            if holder is None or child is None or child not in holder.nodes:
                return False
            same = in_common(child.run, blocks, at)
            at += same
            if same < len(child.run):
                break
            node = child
        return at >= count

    def unlearn(self, instance_id: str, blocks: Sequence[int], kept: int) -> None:
        """The instance has only so many of these, and nothing that begins with more of them."""
        holder = self._holders.get(instance_id)
        if holder is None:
            return
        node, at, count = self._root, 0, len(blocks)
        while at < count:
            child = node.children.get(blocks[at])
            if child is None or child not in holder.nodes:
                return
            same = in_common(child.run, blocks, at)
            if at + same > kept:
                if at == kept:
                    self._cut(holder, child)
                elif child.owners is holder.alone and not child.children:
                    self._shorten(holder, child, len(child.run) - (kept - at))
                else:
                    self._split(child, kept - at)
                    self._cut(holder, child)
                return
            if same < len(child.run):
                return
            node = child
            at += same

    def forget(self, instance_id: str) -> None:
        """All that the instance has."""
        holder = self._holders.pop(instance_id, None)
        if holder is None:
            return
        for node in list(holder.nodes):
            self._disown(holder, node)
        self.bytes -= HOLDER_BYTES
        if holder is self._fullest:
            self._elect(None)

    def clear(self) -> None:
        """Everything but capacities."""
        for instance_id in list(self._holders):
            self.forget(instance_id)

    def limit(self, instance_id: str, blocks: int | None) -> bool:
        """The instance can keep so many, from now on; None if that is not known.

        Returns whether that is new.
        """
        if self._capacities.get(instance_id) == blocks:
            return False
        if blocks is None:
            del self._capacities[instance_id]
        else:
            self._capacities[instance_id] = blocks
        holder = self._holders.get(instance_id)
        if holder is not None:
            holder.capacity = blocks
            if blocks is not None:
                self._shrink(holder, blocks)
        return True

    def _grow(self, holder: Holder, node: Node, blocks: Sequence[int], at: int) -> Node:
        """A node for these, or a longer one, where only this one's conversation has it."""
        run = array("Q", blocks[at:])
        self.blocks += len(run)
        self.bytes += BLOCK_BYTES * len(run)
        if node.owners is holder.alone and not node.children:
            node.run.extend(run)
            holder.blocks += len(run)
            return node
        child = Node(node, run, ())
        self._adopt(node, child)
        self.bytes += NODE_BYTES
        self._own(holder, child)
        return child

    def _own(self, holder: Holder, node: Node) -> None:
        node.owners = node.owners + holder.alone if node.owners else holder.alone
        holder.nodes[node] = None
        holder.blocks += len(node.run)
        self.bytes += HOLD_BYTES

    def _disown(self, holder: Holder, node: Node) -> None:
        del holder.nodes[node]
        holder.blocks -= len(node.run)
        self.bytes -= HOLD_BYTES
        mine = holder.alone[0]
        left = tuple([owner for owner in node.owners if owner != mine])
        # One of two is left: back to the tuple that is there anyway.
        node.owners = self._holders[left[0]].alone if len(left) == 1 else left
        if not left:
            self._remove(node)

    def _remove(self, node: Node) -> None:
        """A node without owners; what follows it has none either, so it has no children."""
        parent = node.parent
        if parent is not None:
            del parent.children[node.run[0]]
            if not parent.children and parent.parent is not None:
                parent.children = _NO_CHILDREN
        self.blocks -= len(node.run)
        self.bytes -= NODE_BYTES + BLOCK_BYTES * len(node.run)

    def _split(self, node: Node, at: int) -> Node:
        """Two nodes of one; returns the first, which every owner has then used just now."""
        parent = node.parent
        assert parent is not None
        first = Node(parent, node.run[:at], node.owners)
        node.run = node.run[at:]
        self._adopt(parent, first)
        self._adopt(first, node)
        self.bytes += NODE_BYTES + HOLD_BYTES * len(node.owners)
        for owner in node.owners:
            nodes = self._holders[owner].nodes
            nodes[first] = None
            # None may be older than what follows it.
            before = parent
            while before.parent is not None:
                nodes.move_to_end(before)
                before = before.parent
        return first

    def _adopt(self, parent: Node, child: Node) -> None:
        if parent.children is _NO_CHILDREN:
            parent.children = {}
        parent.children[child.run[0]] = child
        child.parent = parent

    def _cut(self, holder: Holder, node: Node) -> None:
        """The holder no longer has the node, and what it has behind it."""
        going = [node]
        for one in going:
            going.extend(child for child in one.children.values() if child in holder.nodes)
        for one in reversed(going):
            self._disown(holder, one)

    def _shrink(self, holder: Holder, blocks: int) -> None:
        """Forgets what it used longest ago, until no more than so many are left.

        The end of a run that others have too goes as a whole: to split it would make its
        beginning look as if they had just used it.
        """
        while holder.blocks > blocks:
            node = next(iter(holder.nodes))
            too_many = holder.blocks - blocks
            if too_many < len(node.run) and node.owners is holder.alone:
                self.evictions += too_many
                self._shorten(holder, node, too_many)
            else:
                self.evictions += len(node.run)
                self._disown(holder, node)

    def _shorten(self, holder: Holder, node: Node, by: int) -> None:
        """A node that only this one has, and nothing behind it."""
        del node.run[len(node.run) - by :]
        holder.blocks -= by
        self.blocks -= by
        self.bytes -= BLOCK_BYTES * by

    def _give_up(self) -> bool:
        """The oldest node of the instance that has most; False if none has any."""
        fullest = self._fullest
        if fullest is None or fullest.blocks <= self._fullest_keeps:
            fullest = max(self._holders.values(), key=_blocks, default=None)
            self._elect(fullest)
        if fullest is None or not fullest.nodes:
            return False
        node = next(iter(fullest.nodes))
        self.evictions += len(node.run)
        self._disown(fullest, node)
        return True

    def _elect(self, holder: Holder | None) -> None:
        self._fullest = holder
        self._fullest_keeps = 0 if holder is None else holder.blocks - holder.blocks // GIVES_UP


def _blocks(holder: Holder) -> int:
    return holder.blocks


def in_common(run: Sequence[int], blocks: Sequence[int], at: int) -> int:
    """How many of the run, whose first agrees, agree with the prompt's from `at` on."""
    most, left = len(run), len(blocks) - at
    if left < most:  # noqa: PLR1730 (a fifth of the time of min)
        most = left
    if run[most - 1] == blocks[at + most - 1]:
        return most
    same, differs = 1, most
    while differs - same > 1:
        middle = (same + differs) // 2
        if run[middle - 1] == blocks[at + middle - 1]:
            same = middle
        else:
            differs = middle
    return same
