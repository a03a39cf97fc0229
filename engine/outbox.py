"""Outputs of the work: those for clients, in their order, and the numbers with them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pdgate.engine.live import LiveRequest
from pdgate.engine.request import Finish, Output, Refusal
from pdgate.engine.stats import EngineStats


class Outbox:
    """A prefill that a peer asked for has no client, so its end is counted and not said."""

    def __init__(self) -> None:
        self.stats = EngineStats()
        self._outputs: list[Output] = []

    def take(self) -> list[Output]:
        """What came since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def prompt_is_there(self, live: LiveRequest) -> None:
        """Counts it, once for each request, however its KV came about."""
        if live.cached is not None:
            return
        job = live.job
        live.cached = live.cached_by_peer if job.loaded else job.hits
        from_peer = max(0, job.loaded - job.hits)
        self.stats.first_tokens += 1
        self.stats.prompts_from_cache += job.hits
        self.stats.prompts_from_peer += from_peer
        computed = min(job.prompt_tokens, job.end) - job.hits - from_peer
        self.stats.prompts_computed += computed
        if live.chosen:
            self.stats.prompts_chosen += computed

    def go_on(self, live: LiveRequest, output: Output) -> None:
        self._outputs.append(replace(output, cached_tokens=live.cached or 0))

    def finish(self, live: LiveRequest, output: Output, params: Mapping[str, Any] | None) -> None:
        """`params`: what the connector tells the client."""
        if output.finish is Finish.STOP:
            self.stats.requests_stopped += 1
        else:
            self.stats.requests_cut += 1
        if live.generation is None:
            return
        prompt_logprobs = output.prompt_logprobs
        if live.job.goal is not None:
            prompt_logprobs = live.generation.prompt_logprobs
        self._outputs.append(
            replace(
                output,
                prompt_logprobs=prompt_logprobs,
                cached_tokens=live.cached or 0,
                kv_transfer_params=params,
            )
        )

    def end_early(self, live: LiveRequest, output: Output) -> None:
        """Aborted, or we are shutting down."""
        if live.generation is not None:
            self._outputs.append(output)

    def fail_load(self, request_id: str, error: str, *, as_abort: bool) -> None:
        if as_abort:
            self.stats.requests_failed += 1
            self._outputs.append(Output(request_id, finish=Finish.ABORT))
        else:
            self.stats.requests_failed += 1
            refusal = Refusal(f"KV cache could not be loaded: {error}", over_kv=True)
            self._outputs.append(Output(request_id, refusal=refusal))

    def refuse(self, request_id: str, message: str, *, blame_client: bool = False) -> None:
        if not blame_client:
            self.stats.requests_failed += 1
        self._outputs.append(Output(request_id, refusal=Refusal(message, blame_client)))
