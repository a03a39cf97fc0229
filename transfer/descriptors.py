"""Descriptors as they come from a peer: nothing in them is believed before this."""

import secrets
from collections.abc import Mapping
from typing import Any

from pdgate.transfer.base import Descriptor, OutOfBounds, TransferError
from pdgate.transfer.memory import MEMORY, DeviceMemory
from pdgate.transfer.runtime.arrivals import MAX_IMMEDIATE
from pdgate.transfer.runtime.links import Address

EPOCH_BYTES = 16
MAX_BYTES = 4096
"""Of all texts in one; those of the backends here have less than 500. It is kept for as long as what it
was said for, and goes to movers in one packet.
"""
MAX_FIELDS = 64
MAX_NUMBER = 1 << 63


def new_epoch() -> str:
    return secrets.token_hex(EPOCH_BYTES)


def of_memory(
    backend: str, memory: memoryview | DeviceMemory, address: Mapping[str, Any]
) -> Descriptor:
    """A new one, which says whose memory it is if it is a device's."""
    if isinstance(memory, DeviceMemory):
        there = {**address, MEMORY: memory.device}
        return Descriptor(backend, new_epoch(), memory.length, there)
    return Descriptor(backend, new_epoch(), memory.nbytes, address)


def epoch_bytes(epoch: str) -> bytes:
    """Raises TransferError."""
    try:
        raw = bytes.fromhex(epoch)
    except ValueError:
        raw = b""
    if len(raw) != EPOCH_BYTES:
        raise TransferError(f"not an epoch: {epoch!r}")
    return raw


def as_data(descriptor: Descriptor) -> dict[str, Any]:
    return {
        "backend": descriptor.backend,
        "epoch": descriptor.epoch,
        "length": descriptor.length,
        "address": dict(descriptor.address),
    }


def from_data(data: object) -> Descriptor:
    """Raises ValueError."""
    match data:
        case {
            "backend": str(backend),
            "epoch": str(epoch),
            "length": int(length),
            "address": dict(address),
        } if 0 <= length < MAX_NUMBER:
            _check_size(backend, epoch, address)
            return Descriptor(backend, epoch, length, address)
    raise ValueError("not a transfer descriptor")


def _check_size(backend: str, epoch: str, address: Mapping[Any, Any]) -> None:
    """Plain texts and numbers, and few of them. Raises ValueError."""
    if len(address) > MAX_FIELDS or not all(map(_plain, [*address, *address.values()])):
        raise ValueError("a transfer descriptor whose address is no short plain data")
    texts = [one for one in [backend, epoch, *address, *address.values()] if isinstance(one, str)]
    # In UTF-8 it is no shorter, and only what is short is worth encoding.
    if sum(map(len, texts)) > MAX_BYTES or sum(len(one.encode()) for one in texts) > MAX_BYTES:
        raise ValueError(f"a transfer descriptor of more than {MAX_BYTES} bytes")


def _plain(value: object) -> bool:
    if isinstance(value, int):
        return -MAX_NUMBER <= value < MAX_NUMBER
    return isinstance(value, str | float)


def text(address: Mapping[str, Any], name: str) -> str:
    found = address.get(name)
    if not isinstance(found, str) or not found:
        raise TransferError(f"the descriptor has no {name}")
    return found


def port(address: Mapping[str, Any]) -> int:
    found = address.get("port")
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 65536:
        raise TransferError("the descriptor has no port")
    return found


def owner(address: Mapping[str, Any]) -> Address:
    """Where its owner is dialled, and who has to answer. Raises TransferError."""
    peer = address.get("peer", "")
    return Address(text(address, "host"), port(address), peer if isinstance(peer, str) else "")


def place(descriptor: Descriptor) -> str:
    """Where it is, for messages."""
    address = descriptor.address
    if "host" in address:
        return f"{address['host']}:{address.get('port')}"
    return " ".join([str(one) for one in address.values()])


def check_backend(descriptor: Descriptor, name: str) -> None:
    if descriptor.backend != name:
        raise TransferError(f"{name} cannot reach memory of backend {descriptor.backend!r}")


def check_immediate(immediate: int | None) -> None:
    if immediate is not None and not 0 <= immediate <= MAX_IMMEDIATE:
        raise OutOfBounds(f"an immediate is a u32, not {immediate}")
