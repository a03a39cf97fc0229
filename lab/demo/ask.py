"""Question of the demo, through the official client, as any program would ask it."""

from collections.abc import Callable
from dataclasses import dataclass

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

QUESTION = "Why serve prefill and decode on different machines?"
MAX_TOKENS = 48


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """What the client saw."""

    request_id: str
    model: str
    text: str
    finish_reason: str


async def ask(base_url: str, show: Callable[[str], None]) -> DemoAnswer:
    """Asks the first model that there is and shows the answer as it comes.

    Raises openai.OpenAIError.
    """
    # The reference engines want no key, but the client insists on one. They are on this
    # machine, so no proxy of the environment may come between.
    async with AsyncOpenAI(
        base_url=f"{base_url}/v1",
        api_key="none",
        max_retries=0,
        http_client=DefaultAsyncHttpxClient(trust_env=False),
    ) as client:
        models = await client.models.list()
        model = models.data[0].id
        answer = await client.chat.completions.with_raw_response.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
        )
        pieces: list[str] = []
        finish_reason = ""
        async with answer.parse() as chunks:
            async for chunk in chunks:
                for choice in chunk.choices:
                    finish_reason = choice.finish_reason or finish_reason
                    if text := choice.delta.content:
                        pieces.append(text)
                        show(text)
        request_id = answer.headers.get("x-request-id", "")
    return DemoAnswer(request_id, model, "".join(pieces), finish_reason)
