"""Whether engines of decode-first reach their prefill queue, as they say on /metrics.

The gateway itself does not know that queue. While it is away prompts wait for it, so calls go
on, only later; no engine is down for that, and none is left out.
"""

from typing import Any

from pdgate.gateway.engine_metrics.reader import Reader


class PrefillQueue:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def as_json(self) -> dict[str, Any] | None:
        """For /ready; None where no engine has such a queue. Engines as many as say so last."""
        said = [
            reading.page.queue_up
            for instance_id, reading in self._reader.readings.items()
            if reading.page.queue_up is not None and self._reader.is_fresh(instance_id)
        ]
        if not said:
            return None
        state = "current" if all(said) else "degraded"
        return {"state": state, "engines": len(said), "away_from": said.count(False)}
