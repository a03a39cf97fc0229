"""Waiting for a batch: it is sent, looked at until it has ended, and its files are written.

A gateway that is away for a while, as it is started anew, is asked again: the batch goes on when it does.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import httpx2

from pdgate.cluster import secret
from pdgate.operations.asking import BadAsk, GatewayAway, address

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
AWAY_SECONDS: Final = 120.0
"""After which a gateway that does not answer is given up."""
TIMEOUT_SECONDS: Final = 300.0
OVER: Final = ("completed", "failed", "expired", "cancelled")
ID: Final = "batch_"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """
    Attributes:
        what: A file, or the id of a batch.
        output, errors: Where lines go; None: stdout and stderr.
    """

    what: str
    url: str
    api_key_file: Path | None
    window: str
    output: Path | None
    errors: Path | None


def carry_out(order: BatchOrder, say: Say) -> bool:
    """Return whether each line has an answer. Raise BadAsk, GatewayAway."""
    headers = {}
    if order.api_key_file is not None:
        try:
            headers["authorization"] = f"Bearer {secret.token(str(order.api_key_file))}"
        except ValueError as error:
            raise BadAsk(f"--api-key-file: {error}") from None
    url = address(order.url, "--gateway")
    # A proxy of the environment is for the world outside.
    with httpx2.Client(
        base_url=url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False
    ) as client:
        with _answering(url):
            batch_id = _begun(client, order)
            say(f"{batch_id} has begun")
        batch = _ended(client, batch_id, say, url)
        with _answering(url):
            _write(client, batch["output_file_id"], order.output, sys.stdout.buffer)
            _write(client, batch["error_file_id"], order.errors, sys.stderr.buffer)
    for wrong in (batch["errors"] or {}).get("data", ()):
        say(str(wrong["message"]))
    counts = batch["request_counts"]
    say(f"{batch['status']}: {counts['completed']} of {counts['total']} lines have an answer")
    return batch["status"] == "completed" and not counts["failed"]


def _begun(client: httpx2.Client, order: BatchOrder) -> str:
    """The id of the batch. Raise BadAsk, GatewayAway."""
    path = Path(order.what)
    if order.what.startswith(ID) and not path.exists():
        return order.what
    try:
        endpoint = _endpoint(path)
        with path.open("rb") as lines:
            file = _body(
                client.post(
                    "/v1/files", data={"purpose": "batch"}, files={"file": (path.name, lines)}
                )
            )
    except OSError as error:
        raise BadAsk(f"cannot read {path}: {error.strerror}") from None
    asked = {
        "input_file_id": file["id"], "endpoint": endpoint, "completion_window": order.window,
    }  # fmt: skip
    return str(_body(client.post("/v1/batches", json=asked))["id"])


def _endpoint(path: Path) -> str:
    """What the first line that can be read asks for. Raise BadAsk, OSError."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                url = json.loads(line)["url"]
            except (ValueError, LookupError, TypeError):
                continue
            if isinstance(url, str):
                return url
    raise BadAsk(f"{path} has no line like {{'custom_id': ..., 'url': ..., 'body': ...}}")


def _ended(client: httpx2.Client, batch_id: str, say: Say, url: str) -> dict[str, Any]:
    """Raise BadAsk, GatewayAway."""
    pause, told, heard = FIRST_PAUSE_SECONDS, "", time.monotonic()
    while True:
        try:
            with _answering(url):
                batch = _body(client.get(f"/v1/batches/{batch_id}"))
        except GatewayAway as error:
            if time.monotonic() - heard > AWAY_SECONDS:
                raise
            line = str(error)
        else:
            heard = time.monotonic()
            if batch["status"] in OVER:
                return batch
            counts = batch["request_counts"]
            line = f"{batch['status']}: {counts['completed'] + counts['failed']} of {counts['total']} lines"
        if line != told:
            say(line)
            told = line
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_PAUSE_SECONDS)


def _write(client: httpx2.Client, file_id: str | None, to: Path | None, usual: BinaryIO) -> None:
    """Raise BadAsk, GatewayAway."""
    if file_id is None:
        return
    with client.stream("GET", f"/v1/files/{file_id}/content") as answer:
        if answer.status_code != httpx2.codes.OK:
            answer.read()
            _body(answer)
        try:
            with _out(to, usual) as out:
                for piece in answer.iter_bytes():
                    out.write(piece)
                out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise BadAsk(f"cannot write {to or 'the answers'}: {error.strerror}") from None


@contextmanager
def _out(to: Path | None, usual: BinaryIO) -> Iterator[BinaryIO]:
    if to is None:
        yield usual
    else:
        with to.open("wb") as file:
            yield file


def _body(answer: httpx2.Response) -> dict[str, Any]:
    """Raise BadAsk for what is refused, GatewayAway for what fails."""
    try:
        body = answer.json()
        message = str(body["error"]["message"]) if answer.status_code >= 400 else ""
    except (ValueError, LookupError, TypeError):
        raise GatewayAway(f"the answer is {answer.status_code}, and not a gateway's") from None
    if answer.status_code in (429, 502, 503, 504):
        raise GatewayAway(message)
    if message:
        raise BadAsk(message)
    return dict(body)


@contextmanager
def _answering(url: str) -> Iterator[None]:
    """Raise GatewayAway for what a connection fails with."""
    try:
        yield
    except httpx2.HTTPError as error:
        why = str(error) or type(error).__name__
        raise GatewayAway(f"the gateway at {url} does not answer: {why}") from None
