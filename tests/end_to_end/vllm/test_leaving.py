"""A client that leaves frees both engines."""

import pytest

from tests.end_to_end.vllm.asking import GREEDY, client, prompt
from tests.end_to_end.vllm.engines import Pair
from tests.end_to_end.vllm.gateway import Gateway
from tests.end_to_end.vllm.metrics import held_share, metric, running, settles

LONG_ANSWER = 1500
"""Tokens; takes several times as long as the client stays."""


def test_a_client_that_leaves_in_the_middle_of_a_stream_frees_both_sides(
    pair: Pair, gateway: Gateway
) -> None:
    asked = prompt(200, f"leaves {pair.transfer.name} {gateway.mode}")
    written_before = metric(pair.decode, "vllm:generation_tokens_total")

    with client(gateway.url) as ours:
        options = {**GREEDY, "max_tokens": LONG_ANSWER}
        stream = ours.completions.create(**options, prompt=asked, stream=True)
        for _ in range(3):
            next(stream)
        stream.close()

    for engine in (pair.prefill, pair.decode):
        assert settles(lambda engine=engine: running(engine) == 0)  # type: ignore[misc]
        assert settles(lambda engine=engine: held_share(engine) == 0)  # type: ignore[misc]
    written = metric(pair.decode, "vllm:generation_tokens_total") - written_before
    assert written < LONG_ANSWER


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_decode_rejects_leaves_no_blocks_held(
    stream: bool, pair: Pair, gateway: Gateway
) -> None:
    """P sees max_tokens 1 and no min_tokens, and reads the prompt; only D finds that they contradict."""
    asked = prompt(100, f"rejected {pair.transfer.name} {gateway.mode} {stream}")

    more = {"max_tokens": 4, "extra_body": {"min_tokens": 8}}
    with client(gateway.url) as ours, pytest.raises(Exception, match="400") as refusal:
        ours.completions.create(**{**GREEDY, **more}, prompt=asked, stream=stream)

    assert "min_tokens" in str(refusal.value)
    assert settles(lambda: held_share(pair.prefill) == 0)
