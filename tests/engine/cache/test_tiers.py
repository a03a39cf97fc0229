"""Blocks beyond an engine's pages: what a tier gives is the very KV that was put, or nothing."""

import os
from pathlib import Path

import pytest

from pdgate.engine.cache.prefix import BlockPool, extend, salted
from pdgate.engine.cache.tier_spec import TierSpec, specs_of
from pdgate.engine.cache.tiers import LOOKS, MOST_WAITING, Tier, Tiers, weights_of
from pdgate.engine.hand_over.blocks import NamedBlocks
from pdgate.engine.layout import Layout

LAYOUT = Layout(layers=2, blocks=4, kv_heads=2, block_tokens=4, head_dim=4)
TOKENS = list(range(12))
BYTES = 1 << 20


class Engine:
    """A pool over memory of its own; `tiers` are those of its folders."""

    def __init__(
        self, folders: dict[str, Path], model: str = "m", most: int = BYTES, blocks: int = 4
    ) -> None:
        layout = Layout(layers=2, blocks=blocks, kv_heads=2, block_tokens=4, head_dim=4)
        self.blocks = NamedBlocks(layout, model, [memoryview(bytearray(layout.total_bytes))])
        specs = [TierSpec(medium, str(folder), most) for medium, folder in folders.items()]
        self.tiers = Tiers([Tier(spec) for spec in specs], self.blocks, model)
        self.stirred: list[bool] = []
        self.tiers.stir = lambda: self.stirred.append(True)
        self.pool = BlockPool(blocks, 4, tiers=self.tiers)

    def news(self) -> list[tuple[str, bytes, bool]]:
        return [(one.medium, one.block_hash, one.stored) for one in self.tiers.take_news()]

    def hashes(self, salt: str = "") -> list[bytes]:
        found: list[bytes] = []
        extend(found, TOKENS, 4, 3, salted(self.pool.root, salt))
        return found

    def compute(self, salt: str = "") -> list[bytes]:
        """Fill three blocks, each with bytes of its own, and return those."""
        with self.tiers.writing():
            ids, hashes = self.pool.allocator.take(3), self.hashes(salt)
            for index, block_id in enumerate(ids):
                pages = bytes([index + 1]) * LAYOUT.block_bytes
                self.blocks.write(block_id, memoryview(pages))
                before = hashes[index - 1] if index else None
                self.pool.publish(block_id, hashes[index], before, TOKENS[:4], salt)
            self.pool.allocator.drop(ids)
        return [bytes([index + 1]) * LAYOUT.block_bytes for index in range(3)]

    def found(self, salt: str = "") -> list[bytes]:
        with self.tiers.writing():
            ids = self.pool.borrow(self.hashes(salt), TOKENS, salt)
            pages = [self.blocks.read(block_id) for block_id in ids]
            self.pool.allocator.drop(ids)
        return pages


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {"host": tmp_path / "host", "disk": tmp_path / "disk"}


def files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if not file.name.startswith("."))


def test_another_engine_finds_what_one_has_computed(folders: dict[str, Path]) -> None:
    computed = Engine(folders).compute()

    other = Engine(folders)

    assert other.pool.known_tokens([*TOKENS, 9]) == 12
    assert other.found() == computed
    assert [tier.counts.hits for tier in other.tiers.tiers] == [3, 0]


def test_what_was_only_on_disk_comes_to_the_faster_tier_too(folders: dict[str, Path]) -> None:
    computed = Engine({"disk": folders["disk"]}).compute()

    assert Engine(folders).found() == computed

    assert len(files(folders["host"])) == 3


def test_a_file_that_is_not_whole_is_a_miss(folders: dict[str, Path]) -> None:
    only = {"disk": folders["disk"]}
    computed = Engine(only).compute()
    engine = Engine(only)
    second = folders["disk"] / engine.tiers._name(engine.hashes()[1])
    data = second.read_bytes()
    second.write_bytes(data[: len(data) // 2])

    assert engine.found() == computed[:1]

    assert engine.tiers.tiers[0].counts.broken == 1
    assert not second.exists()
    # What it took for the block is free again.
    assert engine.pool.allocator.free == 4


def test_a_file_of_a_faster_tier_that_is_not_whole_leaves_the_slower_ones(
    folders: dict[str, Path],
) -> None:
    computed = Engine(folders).compute()
    for file in files(folders["host"]):
        file.write_bytes(b"")

    engine = Engine(folders)

    assert engine.found() == computed
    assert [tier.counts.hits for tier in engine.tiers.tiers] == [0, 3]
    # And they are there again.
    assert all(file.stat().st_size for file in files(folders["host"]))


def test_a_tier_that_cannot_be_written_costs_no_call(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine({"disk": folders["disk"]})
    folders["disk"].rmdir()

    assert len(engine.compute()) == 3

    counts = engine.tiers.tiers[0].counts
    assert (counts.failed, counts.written) == (3, 0)
    # Once, and not for each block.
    assert caplog.text.count("cannot be written") == 1
    assert engine.found() == [engine.blocks.read(block_id) for block_id in range(3)]


def test_beyond_what_may_wait_blocks_are_not_written(folders: dict[str, Path]) -> None:
    tiers = Engine({"disk": folders["disk"]}).tiers
    for number in range(MOST_WAITING + 2):
        tiers.put(b"%d" % number, 0)

    with tiers.writing():
        pass

    counts = tiers.tiers[0].counts
    assert (counts.written, counts.dropped) == (MOST_WAITING, 2)


def test_salts_and_models_keep_apart(folders: dict[str, Path]) -> None:
    computed = Engine(folders).compute("mine")

    assert Engine(folders).found("mine") == computed
    assert Engine(folders).found("yours") == []
    assert Engine(folders).found() == []
    assert Engine(folders, model="other").found("mine") == []


def test_other_weights_under_the_same_name_are_another_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"one")
    before = weights_of(str(tmp_path))

    (tmp_path / "model.safetensors").write_bytes(b"others")

    assert weights_of(str(tmp_path)) != before


def test_the_same_weights_elsewhere_are_the_same_model(tmp_path: Path) -> None:
    """As on another host: in another folder, of another time."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"one")
    os.utime(there / "model.safetensors", (1, 1))

    assert weights_of(str(here)) == weights_of(str(there))

    # Of the same size, and time.
    before = (here / "model.safetensors").stat()
    (here / "model.safetensors").write_bytes(b"two")
    os.utime(here / "model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights_of(str(here)) != weights_of(str(there))


def test_engines_of_other_sizes_share(folders: dict[str, Path]) -> None:
    computed = Engine(folders, blocks=4).compute()

    assert Engine(folders, blocks=8).found() == computed


def test_a_tier_stays_below_its_bytes(tmp_path: Path) -> None:
    size, most = LAYOUT.block_bytes, 2 * LOOKS
    spec = TierSpec("disk", str(tmp_path), most * (size + 36))
    tier = Tier(spec)

    for number in range(2 * most):
        tier.put(f"{number:064}", bytes(size))
        assert len(files(tmp_path)) <= most + 3
    assert tier.has(f"{2 * most - 1:064}")

    Tier(TierSpec("disk", str(tmp_path), 5 * (size + 36)))
    assert len(files(tmp_path)) == 5


def test_what_is_read_goes_later_than_what_is_not(tmp_path: Path) -> None:
    size = LAYOUT.block_bytes
    tier = Tier(TierSpec("disk", str(tmp_path), 3 * (size + 36)))
    for age, name in enumerate("abc"):
        tier.put(name * 64, bytes(size))
        os.utime(tmp_path / (name * 64), (age, age))
    assert tier.get("a" * 64, size) is not None

    tier.put("d" * 64, bytes(size))

    assert [tier.has(name * 64) for name in "abcd"] == [True, False, True, True]


def test_pages_that_do_not_suffice_leave_the_rest(folders: dict[str, Path]) -> None:
    computed = Engine(folders).compute()

    assert Engine(folders, blocks=2).found() == computed[:2]


@pytest.mark.parametrize(
    "word", ["", "host", "host=x", "ram=/x:1", "disk=/x:0", "disk=:5", "disk=/x:y"]
)
def test_what_is_no_tier_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="KV tier"):
        specs_of([word])


def test_tiers_are_asked_from_the_fastest_on() -> None:
    specs = specs_of(["disk=/a:2", "host=/b:1"])

    assert [spec.medium for spec in specs] == ["host", "disk"]
    with pytest.raises(ValueError, match="each medium"):
        specs_of(["disk=/a:2", "disk=/b:1"])
    with pytest.raises(ValueError, match="of its own"):
        specs_of(["host=/a:2", "disk=/b/../a:1"])


def test_listeners_hear_what_each_tier_has_once_and_what_is_gone_from_it(
    folders: dict[str, Path],
) -> None:
    engine = Engine(folders)
    engine.compute()
    hashes = engine.hashes()
    assert engine.news() == [(tier, name, True) for name in hashes for tier in ("host", "disk")]
    assert engine.stirred

    for file in folders["host"].iterdir():
        file.unlink()
    engine.pool = BlockPool(4, 4, tiers=engine.tiers)
    engine.found()

    # Disk still has them; the host's memory has lost them, and is given them anew.
    assert engine.news() == [("host", name, there) for name in hashes for there in (False, True)]


def test_an_engine_says_of_blocks_that_others_wrote_that_it_can_have_them(
    folders: dict[str, Path],
) -> None:
    Engine(folders).compute()
    other = Engine(folders)
    other.found()

    assert {name for _, name, stored in other.news() if stored} == set(other.hashes())


def test_what_a_tier_drops_for_room_is_told(tmp_path: Path) -> None:
    most = LAYOUT.block_bytes
    engine = Engine({"disk": tmp_path / "disk"}, most=most)
    engine.compute()

    told: set[bytes] = set()
    for _, name, stored in engine.news():
        (told.add if stored else told.discard)(name)
    assert len(told) == len(list((tmp_path / "disk").iterdir())) < 3
