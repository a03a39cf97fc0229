"""Workers that share a folder: each sees the others, and which of them live."""

from pathlib import Path

from pdgate.gateway.sync.workers.membership import is_locked, lock, other_paths, own_path


def test_each_sees_the_others_of_its_kind_and_not_itself(tmp_path: Path) -> None:
    one, other, unlike = (own_path(tmp_path, kind) for kind in ("table", "table", "prompts"))
    for path in (one, other, unlike):
        path.touch()

    assert other_paths(one) == [other]
    assert other_paths(unlike) == []


def test_a_worker_lives_for_as_long_as_its_file_is_open_as_all_others_see(tmp_path: Path) -> None:
    path = own_path(tmp_path, "table")
    with path.open("wb") as own:
        lock(own)
        with path.open("rb") as one, path.open("rb") as other:
            assert is_locked(one)
            assert is_locked(other)

    with path.open("rb") as one, path.open("rb") as other:
        assert not is_locked(one)
        assert not is_locked(other), "those who looked have not locked it for each other"
