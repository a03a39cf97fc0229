"""vLLM's own encoders: E with the tower, P and D with the language model, and a folder between E and P.

gateway --> E   ECExampleConnector, writes an embedding into a file that is named by the picture's hash
        --> P   reads it there, and D pulls P's KV by NIXL; or P answers by itself
"""

import base64
import binascii
import hashlib
import json
import shutil
import signal
import struct
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import openai
import pytest

from pdgate.protocols.apis import MESSAGES, RESPONSES
from tests.end_to_end.vllm import engines, make_vision_model
from tests.end_to_end.vllm.asking import Said, chat, client
from tests.end_to_end.vllm.engines import MODEL, NIXL, Engine, Fleet, Transfer
from tests.end_to_end.vllm.gateway import Gateway, gateway_over
from tests.end_to_end.vllm.metrics import metric, settles
from tests.support.freezing import freeze
from tests.support.ports import free_port
from tests.support.processes import Child

SIZE: Final = 32
FILE: Final = "encoder_cache.safetensors"


class EncodedSite:
    """
    Attributes:
        alone: Does all by itself.
        store: The folder between E and P.
    """

    def __init__(self, fleet: Fleet, stack: ExitStack) -> None:
        model = fleet.logs / "vision-model"
        make_vision_model.make(model)
        self._fleet = replace(fleet, model=model)
        self.store = fleet.logs / "embeddings"
        self.store.mkdir()
        self._life = stack.enter_context(ExitStack())
        self._port, self._lives = free_port(), 0
        ports = [free_port() for _ in range(3)]
        kv = free_port(), free_port()
        consumes = self._folder("ec_consumer")
        # All at once.
        starting = (
            self._start_encode(),
            self._fleet.start(stack, "epd-alone", ports[0]),
            self._fleet.start(
                stack,
                "epd-p",
                ports[1],
                (*consumes, *NIXL.flags("kv_producer", ports[1], kv[0])),
                NIXL.env(kv[0]),
            ),
            self._fleet.start(
                stack,
                "epd-d",
                ports[2],
                NIXL.flags("kv_consumer", ports[2], kv[1]),
                NIXL.env(kv[1]),
            ),
        )
        self.encode, self.alone, self.prefill, self.decode = (
            engines.ready(process, port)
            for process, port in zip(starting, (self._port, *ports), strict=True)
        )

    def start_again(self) -> None:
        """E at the same address, which has encoded nothing."""
        self._life.close()
        self.encode = engines.ready(self._start_encode(), self._port)

    def _start_encode(self) -> Child:
        self._lives += 1
        # It has no KV that a prefix could be found in.
        flags = (*self._folder("ec_producer"), "--no-enable-prefix-caching")
        return self._fleet.start(self._life, f"epd-e{self._lives}", self._port, flags)

    def _folder(self, role: str) -> Sequence[str]:
        said = {
            "ec_connector": "ECExampleConnector",
            "ec_role": role,
            "ec_connector_extra_config": {"shared_storage_path": str(self.store)},
        }
        return "--ec-transfer-config", json.dumps(said)


@dataclass(frozen=True)
class Fronted:
    """What a gateway over the site is told."""

    serve: Sequence[str]
    transfer: Transfer = NIXL


@pytest.fixture(scope="module")
def site(fleet: Fleet) -> Iterator[EncodedSite]:
    with ExitStack() as stack:
        yield EncodedSite(fleet, stack)


@pytest.fixture(scope="module", params=["E+PD", "E+P+D"])
def gateway(request: pytest.FixtureRequest, site: EncodedSite, fleet: Fleet) -> Iterator[Gateway]:
    serve = ["--encode", site.encode.url]
    if request.param == "E+PD":
        serve += ["--plain", site.prefill.url]
    else:
        serve += ["--prefill", site.prefill.url, "--decode", site.decode.url]
    with gateway_over(Fronted(serve), "batch", fleet.logs) as gateway:
        yield gateway


def png(salt: str) -> bytes:
    """Noise that only `salt` gives, so that no engine has it in a cache."""
    noise = hashlib.shake_256(salt.encode()).digest(3 * SIZE * SIZE)
    rows = b"".join(b"\0" + noise[at : at + 3 * SIZE] for at in range(0, len(noise), 3 * SIZE))

    def part(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return (
            struct.pack(">I", len(content)) + checked + struct.pack(">I", binascii.crc32(checked))
        )

    head = part(b"IHDR", struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")


def data_of(salt: str) -> str:
    return base64.b64encode(png(salt)).decode()


def show(url: str, salt: str, *, stream: bool = False, **more: Any) -> Said:
    """What is answered to a picture."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data_of(salt)}"}}
    with client(url) as asked:
        return chat(
            asked, [{"type": "text", "text": "What is this?"}, image], stream=stream, **more
        )


def post(url: str, path: str, body: Any) -> Any:
    request = urllib.request.Request(
        f"{url}{path}",
        json.dumps({"model": MODEL, **body}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.load(answer)


def served(engine: Engine) -> float:
    return metric(engine, "vllm:request_success_total")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_tokens_are_those_of_an_engine_that_does_it_all(
    site: EncodedSite, gateway: Gateway, stream: bool
) -> None:
    salts = [f"{gateway.url} {stream} {number}" for number in range(3)]
    before = served(site.encode)

    split = [show(gateway.url, salt, stream=stream) for salt in salts]

    assert [one.answer for one in split] == [show(site.alone.url, salt).answer for salt in salts]
    # The same words were asked of each.
    assert len({one.text for one in split}) == len(salts)
    assert settles(lambda: served(site.encode) == before + len(salts))
    assert metric(site.encode, "vllm:generation_tokens_total") == 0
    legs = gateway.record(split[0].call_id)["attempts"][0]["legs"]
    assert next(leg["role"] for leg in legs) == "encode"


def test_prefill_reads_what_the_encoder_wrote(site: EncodedSite, gateway: Gateway) -> None:
    """Another picture's embedding in its place makes the answer that picture's."""
    shown, other = f"{gateway.url} shown", f"{gateway.url} other"
    names = []
    for salt in (shown, other):
        image = {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{data_of(salt)}"},
        }
        said = post(
            site.encode.url,
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [image]}]},
        )
        [name] = said["ec_transfer_params"]
        names.append(name)
    mine, others = (site.store / name / FILE for name in names)
    shutil.copyfile(others, mine)

    answer = show(gateway.url, shown).answer

    assert answer == show(site.alone.url, other).answer
    assert answer != show(site.alone.url, shown).answer


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_the_other_apis_have_their_pictures_encoded_too(
    site: EncodedSite, gateway: Gateway, path: str
) -> None:
    def asked(salt: str) -> dict[str, Any]:
        data = data_of(salt)
        if path == MESSAGES:
            source = {"type": "base64", "media_type": "image/png", "data": data}
            content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
            return {"messages": [{"role": "user", "content": content}], "max_tokens": 16}
        url = f"data:image/png;base64,{data}"
        parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What?"}]
        return {"input": [{"role": "user", "content": parts}], "max_output_tokens": 16}

    def text(url: str, salt: str) -> str:
        said = post(url, path, {**asked(salt), "temperature": 0})
        found: Any = said["output"][0]["content"] if path == RESPONSES else said["content"]
        written: str = found[0]["text"]
        return written

    before = served(site.encode)
    one, other = (f"{gateway.url} {path} {number}" for number in range(2))

    assert text(gateway.url, one) == text(site.alone.url, one) != text(site.alone.url, other)
    assert settles(lambda: served(site.encode) == before + 1)


def test_a_chat_without_a_picture_asks_no_encoder(site: EncodedSite, gateway: Gateway) -> None:
    before = served(site.encode)
    with client(gateway.url) as ours, client(site.alone.url) as reference:
        asked = f"What is an image_url? {gateway.url}"
        assert chat(ours, asked).answer == chat(reference, asked).answer
    assert served(site.encode) == before


def test_an_encoder_that_is_killed_fails_the_call_and_is_back_when_it_is(
    site: EncodedSite, gateway: Gateway
) -> None:
    """The last, as engines that are started anew have encoded nothing."""
    salt = f"{gateway.url} killed"
    asked = served(site.prefill)
    encode = Engine(gateway.url, gateway.process)
    with ThreadPoolExecutor(1) as elsewhere:
        # It has the picture, and says nothing.
        freeze(site.encode.process.pid)
        answering = elsewhere.submit(show, gateway.url, salt)
        assert settles(lambda: metric(encode, "pdgate_instance_calls", role="encode") == 1)
        site.encode.process.signal(signal.SIGKILL)
        with pytest.raises(openai.InternalServerError) as failed:
            answering.result()
    assert failed.value.status_code in (502, 503)
    with pytest.raises(openai.InternalServerError):
        show(gateway.url, salt)
    assert served(site.prefill) == asked

    site.start_again()

    def answers() -> bool:
        try:
            return bool(show(gateway.url, salt).answer == show(site.alone.url, salt).answer)
        except openai.InternalServerError:
            # It has not been looked at again.
            return False

    assert settles(answers, 60)
