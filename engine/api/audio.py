"""POST /v1/audio/transcriptions, /translations and /speech: sound in and text out, and the other way round.

What is heard is what the model goes on with (hearing.py); what is spoken is a tone for each byte of the input.

    stream of a transcription    transcript.text.delta {delta} ..., transcript.text.done {text, usage}
    speech                       a WAV file, as it is made

Source: OpenAI API reference, "Audio", "Create transcription" (streaming events), "Create speech".
"""

import json
import struct
import wave
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from io import BytesIO
from typing import Any, Final

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from pdgate.engine.api import fields
from pdgate.engine.api.hearing import HeardSound
from pdgate.engine.api.routes import EngineRoutes
from pdgate.engine.api.service import EngineService, wire_id
from pdgate.protocols.apis import SPEECH
from pdgate.protocols.errors import BadRequest

HEARING: Final = ("/v1/audio/transcriptions", "/v1/audio/translations")
MOST_SPOKEN: Final = 4096
"""Letters of an input, as OpenAI has it."""
RATE: Final = 8000
SAMPLES_A_BYTE: Final = 80


def routes(service: EngineService) -> EngineRoutes:
    router = EngineRoutes()

    async def hear(http: Request) -> Response:
        async with http.form(max_files=1) as form:
            service.model_name(form.get("model"))
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise BadRequest("file must be an upload", param="file")
            sound = await file.read()
            kind, streams = form.get("response_format", "json"), form.get("stream") == "true"
        heard = HeardSound(service, sound, wire_id(http))
        if streams:
            return StreamingResponse(_events(heard), media_type="text/event-stream")
        async with aclosing(heard.texts()) as texts:
            said = "".join([text async for text in texts])
        if kind == "text":
            return PlainTextResponse(said)
        return JSONResponse({"text": said, "usage": heard.usage()})

    async def speak(http: Request) -> Response:
        body = fields.parse(await http.body())
        service.model_name(body.get("model"))
        said = body.get("input")
        if not isinstance(said, str) or not 0 < len(said) <= MOST_SPOKEN:
            raise BadRequest(f"input must be a text of at most {MOST_SPOKEN}", param="input")
        return StreamingResponse(_spoken(said.encode()), media_type="audio/wav")

    for path in HEARING:
        router.post(path)(hear)
    router.post(SPEECH)(speak)
    return router


async def _events(heard: HeardSound) -> AsyncIterator[bytes]:
    said = ""
    async with aclosing(heard.texts()) as texts:
        async for text in texts:
            said += text
            yield _event({"type": "transcript.text.delta", "delta": text})
    yield _event({"type": "transcript.text.done", "text": said, "usage": heard.usage()})


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def _spoken(said: bytes) -> Iterator[bytes]:
    head = BytesIO()
    with wave.open(head, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(1)
        written.setframerate(RATE)
        written.setnframes(0)
    samples = len(said) * SAMPLES_A_BYTE
    whole = bytearray(head.getvalue())
    # How much there is, which the head says before it is made.
    struct.pack_into("<I", whole, 4, 36 + samples)
    struct.pack_into("<I", whole, 40, samples)
    yield bytes(whole)
    for byte in said:
        yield bytes(128 + (byte % 32) * (1 if at % 16 < 8 else -1) for at in range(SAMPLES_A_BYTE))
