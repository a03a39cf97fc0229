"""`pdgate replay`. Heavy imports wait until it runs, so that help is quick."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdgate.lab.replay.driving import Drive
    from pdgate.lab.replay.outcome import ReplayOutcome
    from pdgate.lab.simulator.trace import TraceCall

LEAST_WIDTH = 120
CALLS, WHERE, SHOWN = "Calls", "Where", "What is shown"


def _option(panel: str, help: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


def replay(
    trace: Annotated[Path, _option(CALLS, "JSONL of calls, as for simulate.")],
    url: Annotated[str, _option(WHERE, "Of the gateway: http://host:port.")],
    model: Annotated[str, _option(WHERE, "What is asked for.", show_default="its first")] = "",
    api_key_file: Annotated[Path | None, _option(WHERE, "File with the caller's API key.")] = None,
    scale: Annotated[float, _option(CALLS, "Times as fast as in the trace.")] = 1.0,
    limit: Annotated[int | None, _option(CALLS, "Only the first so many.", min=1)] = None,
    seconds: Annotated[
        float | None, _option(CALLS, "Only those that come in so many seconds.")
    ] = None,
    block_tokens: Annotated[
        int, _option(CALLS, "Tokens sent for each 512 of a prompt in the trace.", min=1)
    ] = 512,
    max_tokens_scale: Annotated[
        float, _option(CALLS, "Tokens asked for, for each of the trace's.")
    ] = 1.0,
    prompts: Annotated[
        Literal["ids", "text"], _option(CALLS, "Token ids, or text of a byte a token.")
    ] = "ids",
    seed: Annotated[int, _option(CALLS, "Another one sends other prompts.")] = 0,
    concurrency_limit: Annotated[
        int | None, _option(CALLS, "Calls at a time; others wait.", min=1)
    ] = None,
    timeout: Annotated[float, _option(CALLS, "Seconds that an answer may take.")] = 600.0,
    slo_ttft: Annotated[float, _option(SHOWN, "Seconds, for goodput.")] = 5.0,
    slo_tpot: Annotated[float, _option(SHOWN, "Seconds, for goodput.")] = 0.025,
    json_: Annotated[bool, _option(SHOWN, "Figures as JSON.", "--json")] = False,
    out: Annotated[
        Path | None, _option(SHOWN, "Folder for a page, and a line for each call.")
    ] = None,
) -> None:
    """Send the calls of a trace to a gateway, at their times, and measure what callers see.

    Told to stop (Ctrl-C), it shows what it has seen so far.
    """
    from pdgate.lab.replay import asked, report
    from pdgate.lab.replay.driving import Drive
    from pdgate.lab.replay.figures import figures
    from pdgate.lab.replay.prompts import Prompts
    from pdgate.lab.simulator.trace import BadTrace

    try:
        targets = asked.targets_of(slo_ttft, slo_tpot)
        asks = asked.calls_of(trace, scale, limit, seconds)
        plan = Drive(
            server=asked.server_of(url),
            model=model,
            prompts=Prompts(prompts, block_tokens, seed),
            answer_scale=asked.above_zero("--max-tokens-scale", max_tokens_scale),
            limit=concurrency_limit,
            timeout_seconds=asked.above_zero("--timeout", timeout),
            api_key=asked.key_of(api_key_file),
        )
        if out is not None:
            _make(out)
        plan = _with_model(plan, url)
    except (asked.BadReplayFlag, BadTrace) as error:
        typer.echo(f"pdgate replay: {error}", err=True)
        raise typer.Exit(2) from None
    outcomes = _driven(plan, asks)
    if not outcomes:
        typer.echo("pdgate replay: told to stop before anything was sent", err=True)
        return
    found = figures(outcomes, targets)
    told = {
        "trace": str(trace),
        "url": url,
        "model": plan.model,
        "scale": scale,
        "seed": seed,
        "prompts": prompts,
        "block_tokens": block_tokens,
    }
    if out is not None:
        try:
            page = report.draw(out, outcomes, found, told)
        except OSError as error:
            typer.echo(f"pdgate replay: {out} cannot be written: {error.strerror}", err=True)
            raise typer.Exit(1) from None
        typer.echo(f"page: {page}", err=True)
    if json_:
        typer.echo(json.dumps(report.as_json(found, told), indent=2))
    else:
        from rich.console import Console

        console = Console()
        # On a narrow terminal lines break, but no figure is cut off.
        console.width = max(console.width, LEAST_WIDTH)
        title = f"{found.calls} calls in {found.came_seconds:.0f} seconds (scale {scale:g})"
        console.print(report.table(title, found))
        for sentence in report.sentences(found):
            typer.echo(sentence)
        if len(outcomes) < len(asks):
            typer.echo(f"stopped: {len(outcomes)} of {len(asks)} calls were sent")
    if not found.answered:
        raise typer.Exit(1)


def _make(folder: Path) -> None:
    """Before anything is sent, as it would be a pity afterwards. Raises BadReplayFlag."""
    from pdgate.lab.replay.asked import BadReplayFlag

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadReplayFlag(f"--out {folder} cannot be made: {error.strerror}") from None


def _with_model(plan: "Drive", url: str) -> "Drive":
    """Asks the gateway what it has. Raises BadReplayFlag."""
    from dataclasses import replace

    import httpx2

    from pdgate.lab.replay.asked import BadReplayFlag

    headers = {"authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    try:
        with httpx2.Client(trust_env=False, headers=headers, timeout=10) as http:
            response = http.get(f"{url.rstrip('/')}/v1/models")
            response.raise_for_status()
            models = [one["id"] for one in response.json()["data"]]
    except httpx2.HTTPStatusError as error:
        raise BadReplayFlag(f"{url} answers {error.response.status_code} to /v1/models") from None
    except httpx2.HTTPError as error:
        raise BadReplayFlag(f"nobody answers at {url}: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise BadReplayFlag(f"{url} does not speak OpenAI's API: /v1/models is no list") from None
    if not models:
        raise BadReplayFlag(f"{url} has no model yet: its engines are not up")
    if plan.model and plan.model not in models:
        raise BadReplayFlag(f"--model {plan.model}: {url} has {', '.join(models)}")
    return replace(plan, model=plan.model or models[0])


def _driven(plan: "Drive", asks: "Sequence[TraceCall]") -> "list[ReplayOutcome]":
    """On stderr, so that what is on stdout can be read by programs."""
    import asyncio
    import signal

    import uvloop
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from pdgate.lab.replay.driving import drive

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # Drawing takes the time of several calls, in a thread of its own or not.
        refresh_per_second=2,
        disable=not console.is_terminal,
    )

    async def until_done_or_stopped() -> "list[ReplayOutcome]":
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await drive(
            plan, asks, progress=lambda over: bar.update(task, completed=over), stop=stop
        )

    with bar:
        task = bar.add_task("", total=len(asks))
        return uvloop.run(until_done_or_stopped())
