"""A queue by its settings."""

from pdgate.cluster.queue.contract import Queue
from pdgate.cluster.queue.memory import shared
from pdgate.cluster.queue.settings import MEMORY, QueueSettings
from pdgate.protocols.extras import install


def open_queue(settings: QueueSettings, model: str) -> Queue:
    """Queue of one model, as its prompts are of use to no other. Does not connect yet.

    Raise LookupError if the client library is missing.
    """
    if settings.scheme == MEMORY:
        return shared(settings, model)
    try:
        # Only those who use it need the extra.
        from pdgate.cluster.queue.redis_streams import RedisQueue
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise LookupError(f"a queue on Redis needs more: {install('redis')}") from None
    return RedisQueue(settings, model)
