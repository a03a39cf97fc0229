"""What lives in vLLM's worker starts with its settings and ends without a trace."""

import socket
from contextlib import closing

import pytest

from pdgate.engine.vllm import settings
from pdgate.engine.vllm.census import Seat
from pdgate.engine.vllm.running import RunningWorker
from pdgate.transfer.base import TransferError
from tests.engine.vllm.tensors import rebase, two_layers


def start(**extra: object) -> RunningWorker:
    read = settings.read("kv_consumer", 0, extra, "tiny")
    tensors = two_layers()
    return RunningWorker.start(
        read, "/model", tensors, tensors.values(), "cpu-vec", rebase, Seat(), lambda mine: [mine]
    )


def test_it_listens_where_its_answers_say() -> None:
    with closing(start(transfer="tcp")) as running:
        form = running.hand_over.answer_form()

        socket.create_connection((form["remote_host"], form["remote_port"]), 5).close()
        assert dict(running.layers) == {"layers.0": 0, "layers.1": 1}

    with pytest.raises(OSError, match="refused"):
        socket.create_connection((form["remote_host"], form["remote_port"]), 5)


def test_no_region_outlives_it() -> None:
    running = start(transfer="shm")
    running.close()

    with pytest.raises(TransferError, match="closed"):
        running.backend.allocate(4096)


def test_an_unknown_transfer_is_named() -> None:
    with pytest.raises(LookupError, match="carrier-pigeon"):
        start(transfer="carrier-pigeon")
