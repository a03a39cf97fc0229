"""Bodies of answers are read as far as they may go."""

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.cluster.bounded import TooLong, lines, whole

texts = st.lists(st.binary(min_size=1, max_size=9).map(lambda text: text.replace(b"\n", b"-")))


@settings(max_examples=30)
@given(texts, st.lists(st.integers(0, 60)))
async def test_lines_do_not_depend_on_the_borders_of_pieces(
    texts: list[bytes], cuts: list[int]
) -> None:
    body = b"".join(text + b"\n" for text in texts)
    borders = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})

    async def pieces() -> AsyncIterator[bytes]:
        for start, end in pairwise(borders):
            yield body[start:end]

    assert [line async for line in lines(pieces(), 100)] == texts


async def test_a_line_without_an_end_is_given_up() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 50

    with pytest.raises(TooLong, match="more than 100 bytes"):
        _ = [line async for line in lines(pieces(), 100)]


@pytest.mark.parametrize("sizes", [(50, 51), (101,)])
async def test_a_line_that_ends_too_late_is_none(sizes: tuple[int, ...]) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        *before, last = sizes
        for size in before:
            yield b"x" * size
        yield b"x" * last + b"\n"

    with pytest.raises(TooLong, match="more than 100 bytes"):
        _ = [line async for line in lines(pieces(), 100)]


@pytest.mark.parametrize("size", [100, 101])
async def test_a_body_is_read_to_its_bound(size: int) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size):
            yield b"x"

    if size <= 100:
        assert await whole(pieces(), 100) == b"x" * size
    else:
        with pytest.raises(TooLong, match="more than 100 bytes"):
            await whole(pieces(), 100)
