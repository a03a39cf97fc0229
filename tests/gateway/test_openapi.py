"""schemathesis reads our schema, asks what it allows and what it does not, and looks at the answers.

Left out: whether wrong fields are refused, as that is the engines' to say; /ready, whose 503 is what it is for;
and the handshake of a WebSocket, which is no request of a schema.
"""

import asyncio
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from pdgate.protocols.apis import REALTIME, SPEECH
from pdgate.protocols.instance import Role
from tests.support.fleet import ANSWER, Engine, as_json, engine_error, gateway_of
from tests.support.raw_server import Peer, reply

EXAMPLES = 8
SECONDS = 240.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("front_end"),
    pytest.mark.parametrize("front_end", ["hot"], indirect=True),
]


NO_STREAM = engine_error(b"400 Bad Request", "no streams here")
SPOKEN = reply(b"RIFF", b"200 OK", b"content-type: audio/wav")
TOO_MANY = engine_error(b"429 Too Many Requests", "not so many answers now")
MOST = 1000
ENDED = {
    "status": "completed",
    "stop_reason": "end_turn",
    "meta_info": {"finish_reason": {"type": "stop"}},
}


async def answers(peer: Peer) -> None:
    """Whole: schemathesis takes what a schema says of a stream's text for each event's."""
    body = json.loads(peer.request.body)
    count = asked_for(body)
    if body.get("stream") is True:
        await peer.send(NO_STREAM)
    elif count > MOST:
        await peer.send(TOO_MANY)
    elif peer.request.line.startswith(b"POST /generate ") and count > 1:
        await peer.send(as_json([ENDED] * count))
    else:
        [choice] = ANSWER["choices"]
        await peer.send(as_json({**ANSWER, "choices": [choice] * count, **ENDED}))


async def speaks_or_reads(peer: Peer) -> None:
    await peer.send(SPOKEN if SPEECH.encode() in peer.request.line else as_json(ANSWER))


def asked_for(body: dict[str, Any]) -> int:
    """Answers to each of its prompts."""
    sampling = body.get("sampling_params")
    counts = [body.get("n"), sampling.get("n") if isinstance(sampling, dict) else None]
    prompts = [body.get(name) for name in ("prompt", "text", "input_ids")]
    return math.prod(int(n) for n in counts if isinstance(n, int | float) and n > 1) * math.prod(
        len(found) for found in prompts if isinstance(found, list) and found
    )


async def test_every_answer_is_one_that_the_schema_names(tmp_path: Path) -> None:
    decode = Engine(Role.DECODE, answers)
    async with gateway_of(
        Engine(Role.PREFILL), decode, Engine(Role.PLAIN, speaks_or_reads)
    ) as gateway:
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("schemathesis")), "run"),
            f"http://127.0.0.1:{gateway.port}/openapi.json",
            *("--phases", "coverage,fuzzing", "--max-examples", str(EXAMPLES)),
            *("--exclude-checks", "negative_data_rejection", "--exclude-path", "/ready"),
            *("--exclude-path", REALTIME),
            # Each is as another one, which is asked.
            *(
                "--exclude-path-regex",
                "^/(v1/score|v1/rerank|v2/rerank|v2/embed|pooling|classify|v1/audio/translations)$",
            ),
            *("--seed", "1", "--request-timeout", "10", "--no-color"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(SECONDS):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    assert process.returncode == 0, said.decode()
    assert decode.calls
