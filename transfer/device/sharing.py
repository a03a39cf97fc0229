"""Allocations of a device on their way to another process of the host (msgpack).

    [offset, [[handle, with a descriptor, bytes], ...]]      and the descriptors beside it

A peer of this host said it, of the same user, and still it is checked: nothing outside the
allocations may be reached by what they are opened for.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from pdgate.transfer.base import TransferError
from pdgate.transfer.device.base import SharedAllocation, SharedDeviceMemory

MAX_BYTES: Final = 1 << 46
"""Of an allocation; more no device has."""


class _Part(msgspec.Struct, frozen=True, array_like=True):
    handle: bytes
    described: bool
    length: int


class _SharingSaid(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    parts: list[_Part]


_decoder = msgspec.msgpack.Decoder(_SharingSaid)


def encode(shared: SharedDeviceMemory) -> bytes:
    """Without the descriptors."""
    parts = [_Part(part.handle, part.fd is not None, part.length) for part in shared.parts]
    return msgspec.msgpack.encode(_SharingSaid(shared.offset, parts))


def descriptors(shared: SharedDeviceMemory) -> list[int]:
    return [part.fd for part in shared.parts if part.fd is not None]


def decode(data: bytes, fds: Sequence[int], length: int) -> SharedDeviceMemory:
    """`length`: of the memory in them. Raises TransferError."""
    try:
        said = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TransferError(f"the peer's allocations are not named well: {error}") from None
    left = list(fds)
    parts = []
    for part in said.parts:
        if not 0 < part.length <= MAX_BYTES or (part.described and not left):
            raise TransferError("the peer's allocations are not named well")
        parts.append(
            SharedAllocation(part.handle, left.pop(0) if part.described else None, part.length)
        )
    whole = sum(part.length for part in parts)
    if not parts or left or said.offset < 0 or said.offset + length > whole:
        raise TransferError("the peer's memory lies outside its allocations")
    return SharedDeviceMemory(tuple(parts), said.offset)
