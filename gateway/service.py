"""The life of one call, from its bytes to the end of its answer. Knows no framework.

front end (ASGI, ...)            service
  | path, headers, body ------->   intake: Call, or an error
  |                                execution: legs, failover
  | <------ client.deliver(answer)
  | <------ client.refuse / break_off(error)
"""

import asyncio
from typing import Protocol

from pdgate.forwarders.base import Answer
from pdgate.forwarders.execution import Execution
from pdgate.forwarders.record import Record
from pdgate.gateway import errors
from pdgate.gateway.books import Books
from pdgate.gateway.intake import Intake
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import EngineRejected, GatewayError

CLIENT_GONE = 499
"""As nginx writes it; nobody gets to see it but the log."""


class Client(Protocol):
    """The side that asked, as a front end presents it."""

    async def deliver(self, answer: Answer, record: Record) -> None:
        """Relays the answer; sets record.committed when its first byte goes out."""

    async def refuse(self, error: GatewayError, call_id: str) -> None:
        """The whole response is an error."""

    async def break_off(self, error: GatewayError) -> None:
        """The answer has begun and cannot go on."""


class Service:
    def __init__(self, intake: Intake, execution: Execution, books: Books) -> None:
        self.intake = intake
        self._execution = execution
        self._books = books

    async def handle(self, path: str, headers: Headers, body: bytes, client: Client) -> None:
        """Never raises for what goes wrong with the call; only CancelledError gets out."""
        call_id = ""
        try:
            call_id = self.intake.call_id(headers)
            call = self.intake.call(path, headers, body, call_id)
        except GatewayError as error:
            self._books.refused(error)
            await client.refuse(error, call_id)
            return
        record = Record(call)
        self._books.opened(record)
        try:

            async def deliver(answer: Answer) -> None:
                await client.deliver(answer, record)

            await self._execution.serve(call, record, deliver)
            record.end("ok", 200)
        except asyncio.CancelledError:
            record.end("client_gone", CLIENT_GONE)
            raise
        # Whatever it is, the client gets an answer; `known` logs what is a bug of ours.
        except Exception as caught:  # noqa: BLE001
            await self._fail(errors.known(caught), record, client)
        finally:
            self._books.closed(record)

    async def _fail(self, error: GatewayError, record: Record, client: Client) -> None:
        record.end(error.code or "engine_rejected", _status(error))
        if record.committed is None:
            await client.refuse(error, record.call.id)
        else:
            await client.break_off(error)


def _status(error: GatewayError) -> int:
    return error.answer_status if isinstance(error, EngineRejected) else error.status
