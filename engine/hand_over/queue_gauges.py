"""What an engine's /metrics shows of the prefill queue.

Every engine shows the whole queue, so the numbers of several must not be added up.
"""

from collections.abc import Mapping

from pdgate.cluster.queue.contract import Depth


def shown(depth: Depth | None, away_seconds: float) -> Mapping[str, tuple[str, float]]:
    """Nothing but that it is away, and for how long, of a queue that cannot be asked."""
    reach = {
        "pdgate_prefill_queue_up": ("Whether the queue could be asked", float(depth is not None)),
        "pdgate_prefill_queue_away_seconds": ("Since it last could be", away_seconds),
    }
    if depth is None:
        return reach
    return reach | {
        "pdgate_prefill_queue_waiting": ("Prompts that nobody has taken", depth.waiting),
        "pdgate_prefill_queue_taken": ("Prompts that a worker has taken", depth.taken),
        "pdgate_prefill_queue_buried": ("Prompts given up, as far as kept", depth.buried),
        "pdgate_prefill_queue_oldest_seconds": (
            "Since the oldest prompt that is not done was put, or put back",
            depth.oldest_seconds,
        ),
    }
