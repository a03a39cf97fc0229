"""What the gateway knows of an instance ends with the instance. (Last: it replaces P.)"""

from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.engines import Engine, Fleet, Pair
from tests.end_to_end.vllm.gateway import gateway_over
from tests.end_to_end.vllm.metrics import settles
from tests.support.processes import answers_200


def test_a_restarted_prefill_instance_is_used_under_its_new_engine_id(
    alone: Engine, pair: Pair, fleet: Fleet
) -> None:
    """With the old id, Mooncake's D would talk to a worker that is gone, and wait."""
    salt = f"restart {pair.transfer.name}"
    with (
        gateway_over(pair, "batch", fleet.logs) as gateway,
        client(gateway.url) as ours,
        client(alone.url) as reference,
    ):
        complete(ours, prompt(40, f"{salt} before"))

        pair.restart_prefill()
        assert settles(lambda: answers_200(f"{gateway.url}/ready"))
        asked = prompt(100, f"{salt} after")
        said = complete(ours, asked)

        assert said.answer == complete(reference, asked).answer
        record = gateway.record(said.call_id)
        assert (record["path"], record["kv"]) == ("disaggregated", "handed_over")
