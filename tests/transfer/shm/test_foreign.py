import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer.base import PeerLost, TransferError
from pdgate.transfer.shm import foreign as shm_foreign
from pdgate.transfer.shm.foreign import CHUNK_BYTES, MAX_PIECES, Foreign, batches

lengths = st.lists(st.integers(0, 3 * CHUNK_BYTES) | st.integers(0, 64), max_size=40)


@given(lengths)
def test_batches_are_the_ranges_in_order_and_never_too_much_at_once(lengths: list[int]) -> None:
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    pieces = [(at, 5 * at, length) for at, length in zip(starts, lengths, strict=True)]

    cut = list(batches(pieces))

    assert all(sum(piece[2] for piece in batch) <= CHUNK_BYTES for batch in cut)
    assert all(0 < len(batch) <= MAX_PIECES for batch in cut)
    end = 0
    for local, remote, length in (piece for batch in cut for piece in batch):
        here, there, _ = next(one for one in pieces if one[0] <= local < one[0] + one[2])
        assert (local, remote) == (end, there + local - here)
        end += length
    assert end == sum(lengths)


def test_more_small_ranges_than_one_call_takes() -> None:
    cut = list(batches([(i, i, 1) for i in range(2 * MAX_PIECES + 1)]))

    assert [len(batch) for batch in cut] == [MAX_PIECES, MAX_PIECES, 1]


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.ESRCH, PeerLost, "gone"),
        (errno.EPERM, TransferError, "ptrace_scope"),
        (errno.EFAULT, TransferError, "Bad address"),
        (0, TransferError, "early"),
    ],
)
def test_what_the_kernel_refuses_has_a_name(
    number: int, kind: type[TransferError], said: str
) -> None:
    error = shm_foreign._error(number)

    assert type(error) is kind
    assert said in str(error)


def test_an_owner_that_the_kernel_cannot_name_is_refused() -> None:
    with pytest.raises(TransferError, match="namespace"):
        Foreign(0, 4096)
