"""GET /v1/realtime: a WebSocket, by which sound comes in and text goes out, as vLLM has it.

    client                                                engine
                                                          session.created
    session.update {model}                                session.updated, or error model_not_found
    input_audio_buffer.append {audio: base64} ...
    input_audio_buffer.commit                             transcription.delta {delta} ...
                                                          transcription.done {text, usage}

vLLM answers a good `session.update` with nothing, OpenAI with `session.updated`, for which its clients wait. The model
may be named at its top, as vLLM reads it, or in its `session`; a commit before it is refused, as in vLLM. All sound
of one commit is heard when it is whole (hearing.py).

Source: vLLM at 055e47c, entrypoints/speech_to_text/realtime/connection.py, protocol.py; OpenAI API reference, "Realtime".
"""

import base64
import binascii
import json
import time
import uuid
from contextlib import aclosing
from typing import Any, Final

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from pdgate.engine.api.hearing import HeardSound
from pdgate.engine.api.service import EngineService
from pdgate.protocols.apis import REALTIME
from pdgate.protocols.errors import GatewayError, UnknownModel

MOST_SOUND_BYTES: Final = 25 << 20


def route(service: EngineService) -> WebSocketRoute:
    async def converse(websocket: WebSocket) -> None:
        await RealtimeSession(service, websocket).serve()

    return WebSocketRoute(REALTIME, converse)


class RealtimeSession:
    def __init__(self, service: EngineService, websocket: WebSocket) -> None:
        self._service = service
        self._websocket = websocket
        self._id = websocket.headers.get("x-request-id") or f"sess-{uuid.uuid4().hex}"
        self._sound = bytearray()
        self._model_is_known = False

    async def serve(self) -> None:
        offered = self._websocket.scope.get("subprotocols") or []
        await self._websocket.accept("realtime" if "realtime" in offered else None)
        try:
            session = {"id": self._id, "object": "realtime.session"}
            await self._say(
                "session.created", id=self._id, created=int(time.time()), session=session
            )
            while True:
                await self._hear(await self._websocket.receive_text())
        # KeyError: of a message that is no text.
        except (WebSocketDisconnect, KeyError):
            return

    async def _hear(self, message: str) -> None:
        try:
            event = json.loads(message)
        except (ValueError, RecursionError):
            await self._refuse("Invalid JSON", "invalid_json")
            return
        match event.get("type") if isinstance(event, dict) else None:
            case "session.update":
                await self._update(event)
            case "input_audio_buffer.append":
                await self._append(event)
            case "input_audio_buffer.commit":
                await self._commit()
            case other:
                await self._refuse(f"Unknown event type: {other}", "unknown_event")

    async def _update(self, event: dict[str, Any]) -> None:
        session = event.get("session")
        named = event.get("model") or (session.get("model") if isinstance(session, dict) else None)
        try:
            model = self._service.model_name(named)
        except UnknownModel as error:
            await self._refuse(str(error), "model_not_found")
            return
        self._model_is_known = True
        more = session if isinstance(session, dict) else {}
        await self._say("session.updated", session={**more, "id": self._id, "model": model})

    async def _append(self, event: dict[str, Any]) -> None:
        try:
            sound = base64.b64decode(event.get("audio") or "", validate=True)
        except (binascii.Error, TypeError, ValueError):
            sound = b""
        if not sound or len(self._sound) + len(sound) > MOST_SOUND_BYTES:
            await self._refuse("Invalid audio data", "invalid_audio")
            return
        self._sound += sound

    async def _commit(self) -> None:
        if not self._model_is_known:
            await self._refuse("Model not validated: send a session.update", "model_not_validated")
            return
        sound = bytes(self._sound)
        self._sound.clear()
        said = ""
        try:
            heard = HeardSound(self._service, sound, self._id)
            async with aclosing(heard.texts()) as texts:
                async for text in texts:
                    said += text
                    await self._say("transcription.delta", delta=text)
        except GatewayError as error:
            await self._refuse(str(error), "processing_error")
            return
        await self._say("transcription.done", text=said, usage=heard.usage())

    async def _say(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "event_id": f"event_{uuid.uuid4().hex}", **fields}
        await self._websocket.send_text(json.dumps(event))

    async def _refuse(self, message: str, code: str) -> None:
        await self._say("error", error=message, code=code)
