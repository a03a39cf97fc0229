"""Realtime and audio of a reference engine behind the gateway, asked by OpenAI's own client and by hand."""

import base64
import json
from collections.abc import Iterator
from io import BytesIO

import pytest
from openai import OpenAI
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.end_to_end.reference.fleet import HTTP, Fleet

SOUND = bytes(range(48))
MODEL = "pdgate-tiny"


@pytest.fixture(scope="module")
def door(fleet: Fleet) -> Iterator[str]:
    """Base URL of a gateway whose plain engine hears."""
    with fleet.serve("--plain", fleet.single().url) as gateway:
        yield gateway.url


def test_openais_client_holds_a_session(door: str) -> None:
    client = OpenAI(base_url=f"{door}/v1", api_key="none")
    with client.realtime.connect(model=MODEL) as session:
        assert session.recv().type == "session.created"
        session.session.update(session={"type": "realtime", "instructions": "listen"})
        assert session.recv().type == "session.updated"
        session.input_audio_buffer.append(audio=base64.b64encode(SOUND).decode())
        session.input_audio_buffer.commit()
        said = ""
        while (event := json.loads(session.recv_bytes()))["type"] == "transcription.delta":
            said += event["delta"]
        assert (event["type"], event["text"]) == ("transcription.done", said)
        assert said


def test_vllms_words_pass_and_a_browsers_key_is_no_subprotocol(door: str) -> None:
    url = door.replace("http://", "ws://")
    offered = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.k")]
    with connect(f"{url}/v1/realtime?model={MODEL}", subprotocols=offered) as session:
        assert session.subprotocol == "realtime"
        assert json.loads(session.recv())["type"] == "session.created"
        session.send(json.dumps({"type": "session.update", "model": "another"}))
        assert json.loads(session.recv())["code"] == "model_not_found"


def test_audio_is_heard_and_spoken(door: str) -> None:
    client = OpenAI(base_url=f"{door}/v1", api_key="none")
    whole = client.audio.transcriptions.create(model=MODEL, file=("a.wav", BytesIO(SOUND)))
    events = list(
        client.audio.transcriptions.create(model=MODEL, file=("a.wav", BytesIO(SOUND)), stream=True)
    )
    assert events[-1].type == "transcript.text.done"
    deltas = [each.delta for each in events if each.type == "transcript.text.delta"]
    assert "".join(deltas) == events[-1].text == whole.text
    assert whole.text
    spoken = client.audio.speech.create(model=MODEL, input="hello", voice="alloy")
    assert spoken.content.startswith(b"RIFF")
    refused = HTTP.post(
        f"{door}/v1/audio/translations", data={"model": "none"}, files={"file": b"a"}
    )
    assert refused.status_code == 404
