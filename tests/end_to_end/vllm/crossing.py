"""What shows that a call was prefilled on P and decoded on D, and left nothing behind."""

from tests.end_to_end.vllm.asking import Said
from tests.end_to_end.vllm.engines import Pair
from tests.end_to_end.vllm.gateway import Gateway
from tests.end_to_end.vllm.metrics import Prompts, held_share, settles


def crossed(
    said: Said, before: Prompts, pair: Pair, gateway: Gateway, *, shared_tokens: int = 0
) -> None:
    """The KV of the whole prompt came from P, everyone says so, and P keeps none of it.

    Prompts that begin alike share up to `shared_tokens`, which D may have from an earlier call.
    """
    record = gateway.record(said.call_id)
    assert (record["path"], record["kv"]) == ("disaggregated", "handed_over")
    assert (record["protocol"], record["mode"]) == (gateway.protocol, gateway.mode)

    def accounted() -> bool:
        grew = Prompts.of(pair.decode) - before
        return grew.transferred + grew.cached + grew.computed == said.prompt_tokens

    assert settles(accounted), f"D's prompt tokens: {Prompts.of(pair.decode) - before}"
    grew = Prompts.of(pair.decode) - before
    assert grew.computed == pair.transfer.computed_by_decode
    assert grew.cached <= shared_tokens
    assert settles(lambda: held_share(pair.prefill) == 0), "P still holds blocks of the call"
