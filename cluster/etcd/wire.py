"""The JSON of etcd's HTTP gateway, as pure functions.

    POST /v3/kv/range        the entries of a folder
    POST /v3/kv/put          one entry, tied to a lease
    POST /v3/kv/txn          the same, and others go
    POST /v3/lease/grant     /v3/lease/keepalive  /v3/lease/revoke
    POST /v3/watch           one JSON object a line, for as long as the connection lives

Keys and values are base64, 64-bit numbers are texts, and fields that are zero are left out,
also the type of an event that is PUT. Revisions count the writes of the whole store.

Source: etcd 3.4.23, api: rpc.proto and kv.proto, "gRPC gateway" in its documentation; the
resumption as in its client/v3, watch.go: after the last event's mod_revision.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdgate.cluster.bounded import parsed
from pdgate.cluster.directory import StoreAway

Body = dict[str, Any]


class EtcdError(StoreAway):
    """etcd cannot be reached, or refuses; the message is for operators."""


class LeaseGone(EtcdError):
    """The lease has ended, and its entries with it."""


class NotThere(EtcdError):
    """The store does not know that revision: it is compacted, or has not been reached yet."""


OUT_OF_RANGE = 11
"""gRPC's code for both."""


@dataclass(frozen=True, slots=True)
class EtcdChange:
    """
    Attributes:
        value: What was written; None if the entry is gone.
        revision: Of this very write.
    """

    key: str
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class EtcdContents:
    """
    Attributes:
        entries: In the order in which they were written.
        revision: Up to which the entries are complete.
    """

    entries: Mapping[str, bytes]
    revision: int


@dataclass(frozen=True, slots=True)
class Created:
    """The watch stands; but etcd looks only now whether it still has all that was asked for."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What happened since the revision asked for is forgotten: everything is to be read anew."""


@dataclass(frozen=True, slots=True)
class Changes:
    changes: tuple[EtcdChange, ...]


def folder(prefix: str) -> Body:
    """The keys that begin so; the end is the first key that does not."""
    last = chr(ord(prefix[-1]) + 1)
    return {"key": _encode(prefix), "range_end": _encode(prefix[:-1] + last)}


def listing(prefix: str, revision: int, most: int) -> Body:
    """List so many keys, those that were written first."""
    order = {"sort_order": "ASCEND", "sort_target": "MOD"}
    return {**folder(prefix), **order, "revision": str(revision), "limit": str(most)}


def put(key: str, value: bytes, lease: str) -> Body:
    return {"key": _encode(key), "value": b64encode(value).decode(), "lease": lease}


def put_instead(key: str, value: bytes, lease: str, of: Sequence[str]) -> Body:
    """One revision, whose events come in this order: first it is there, then the others go."""
    deletes = [{"request_delete_range": {"key": _encode(other)}} for other in of]
    return {"success": [{"request_put": put(key, value, lease)}, *deletes]}


def watch(prefix: str, revision: int) -> Body:
    """Watch everything from this revision on, itself included."""
    return {"create_request": {**folder(prefix), "start_revision": str(revision)}}


def contents(answer: Body) -> EtcdContents:
    """Raises EtcdError."""
    try:
        written = sorted(answer.get("kvs", ()), key=lambda found: int(found["mod_revision"]))
        entries = {_decode(found["key"]): _value(found) for found in written}
        return EtcdContents(entries, _revision(answer))
    except _NONSENSE as error:
        raise _nonsense(error) from None


def revision(answer: Body) -> int:
    """Revision that the store was at. Raise EtcdError."""
    try:
        return _revision(answer)
    except _NONSENSE as error:
        raise _nonsense(error) from None


def lease_granted(answer: Body) -> str:
    """Its id. Raises EtcdError."""
    found = answer.get("ID")
    if not isinstance(found, str):
        raise EtcdError("etcd granted a lease without an id")
    return found


def lease_kept(answer: Body) -> int:
    """The revision that the store was at. Raises LeaseGone, EtcdError."""
    try:
        # No lifetime left, or none said, is how etcd says that it knows no such lease.
        if int(answer["result"].get("TTL", 0)) <= 0:
            raise LeaseGone("the lease has ended")
        return _revision(answer["result"])
    except _NONSENSE as error:
        raise _nonsense(error) from None


def line(text: bytes) -> Created | Compacted | Changes:
    """One line of a watch. Raises EtcdError."""
    try:
        said = parsed(text)
        if "error" in said:
            raise EtcdError(message(said["error"]))
        result = said["result"]
        if result.get("canceled"):
            if int(result.get("compact_revision", 0)):
                return Compacted()
            raise EtcdError(f"etcd ended the watch: {result.get('cancel_reason', 'no reason')}")
        if result.get("created"):
            return Created()
        return Changes(tuple(_change(event) for event in result.get("events", ())))
    except _NONSENSE as error:
        raise _nonsense(error) from None


def refusal(answer: Body) -> EtcdError:
    """The error for an answer that is not 200."""
    what = message(answer.get("error", answer))
    if answer.get("code") == OUT_OF_RANGE:
        return NotThere(what)
    return LeaseGone(what) if "requested lease not found" in what else EtcdError(what)


def message(error: Any) -> str:
    """etcd writes errors as a text, or as an object around one."""
    said = error.get("message") if isinstance(error, dict) else error
    return str(said)[:200]


_NONSENSE = (ValueError, KeyError, TypeError, AttributeError)


def _nonsense(error: Exception) -> EtcdError:
    return EtcdError(f"what etcd answered cannot be read: {error!r}")


def _revision(answer: Body) -> int:
    return int(answer["header"]["revision"])


def _change(event: Body) -> EtcdChange:
    found = event["kv"]
    value = None if event.get("type") == "DELETE" else _value(found)
    return EtcdChange(_decode(found["key"]), value, int(found["mod_revision"]))


def _value(found: Body) -> bytes:
    return b64decode(found.get("value", ""))


def _encode(key: str) -> str:
    return b64encode(key.encode()).decode()


def _decode(key: str) -> str:
    # A key is bytes to etcd; one that is no text is still to be told apart and refused.
    return b64decode(key).decode(errors="backslashreplace")
