"""Notifications: prefill engines say here that all KV of a call has been pushed to decode, which is asked only then.

    PULL   msgpack {"type": "ProxyNotif", "req_id": ...}     LMCache's PD backend, from its pd_proxy_host:pd_proxy_port

One socket, so one worker. Addresses are let in by network, before a byte is read; a message has MOST_BYTES (cluster/zmtp has the other
bounds). With tensor parallelism each rank says so, and the first counts, as in LMCache's own proxy.

Source: LMCache 0.5, lmcache/v1/storage_backend/pd_backend.py (ProxyNotif, _nixl_worker_loop); examples' disagg_proxy_server.py.
"""

from typing import Final

import msgspec

from pdgate.cluster.networks import Allowed
from pdgate.cluster.zmtp.listener import ZmtpListener, ZmtpPeer
from pdgate.gateway.callbacks.words import MessageResult, Words

MOST_BYTES: Final = 1 << 10


class _Notification(msgspec.Struct, tag="ProxyNotif"):
    req_id: str


_read = msgspec.msgpack.Decoder(_Notification).decode


class Notifications:
    """
    Attributes:
        port: That it has.
    """

    def __init__(self, host: str, port: int, words: Words, allowed: Allowed) -> None:
        """Binds at once. Raises OSError."""
        self._words = words
        self._listener = ZmtpListener(
            host,
            port,
            "PULL",
            allowed,
            MOST_BYTES,
            self._heard,
            lambda why: words.count(MessageResult(why.value)),
        )
        self.port = self._listener.port

    async def run(self) -> None:
        await self._listener.run()

    def close(self) -> None:
        self._listener.close()

    def _heard(self, _: ZmtpPeer, parts: list[bytes]) -> None:
        try:
            # A message in parts has an empty one before it where DEALER stands for REQ.
            key = _read(parts[-1]).req_id
        # A text that is no UTF-8 is a ValueError.
        except (msgspec.DecodeError, ValueError, RecursionError):
            self._words.count(MessageResult.MALFORMED)
        else:
            self._words.count(self._words.say(key, {}))
