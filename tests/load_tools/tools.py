"""What each tool is, how it is asked, and what it says of how that went."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

REQUESTS: Final = 20
CONCURRENCY: Final = 4
PROMPT_TOKENS: Final = 64
OUTPUT_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Site:
    """
    Attributes:
        url: Of the gateway.
        model: As calls name it.
        folder: With the model's tokenizer.
    """

    url: str
    model: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    good: int
    bad: int


@dataclass(frozen=True, slots=True)
class Tool:
    """
    Attributes:
        package: In the package index, pinned.
        program: In its environment.
        arguments: For a site, and a folder of its own for what it writes, which is where it runs.
        outcome: Read from that folder. Raises OSError, KeyError where it wrote nothing of the kind.
    """

    name: str
    package: str
    program: str
    arguments: Callable[[Site, Path], Sequence[str]]
    outcome: Callable[[Path], Outcome]


def _guidellm(site: Site, out: Path) -> Sequence[str]:
    tokens = f"prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"
    return (
        "run",
        *("--backend", f"kind=openai_http,target={site.url},model={site.model}"),
        *("--profile", f"kind=concurrent,streams={CONCURRENCY}"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--data", f"kind=synthetic_text,{tokens}"),
        *("--tokenizer", f"kind=hf_auto,model={site.folder}"),
        *("--output", f"kind=json,path={out / 'guidellm.json'}"),
        "--disable-progress",
    )


def _guidellm_outcome(out: Path) -> Outcome:
    (benchmark,) = _read(out / "guidellm.json")["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    return Outcome(totals["successful"], totals["errored"] + totals["incomplete"])


def _aiperf(site: Site, out: Path) -> Sequence[str]:
    # A tokenizer in a folder is found by a path that is not absolute.
    (out / "tokenizer").symlink_to(site.folder)
    return (
        "profile",
        *("--url", site.url),
        *("--model", site.model),
        *("--endpoint-type", "chat"),
        "--streaming",
        *("--tokenizer", "./tokenizer"),
        *("--concurrency", str(CONCURRENCY)),
        *("--request-count", str(REQUESTS)),
        *("--synthetic-input-tokens-mean", str(PROMPT_TOKENS)),
        *("--output-tokens-mean", str(OUTPUT_TOKENS)),
        *("--artifact-dir", str(out / "aiperf")),
        *("--ui", "none"),
    )


def _aiperf_outcome(out: Path) -> Outcome:
    """One line for each request; `error` is not null for those that failed."""
    lines = (out / "aiperf" / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    bad = sum(record.get("error") is not None for record in records)
    return Outcome(len(records) - bad, bad)


TOOLS: Final = (
    Tool("guidellm", "guidellm==0.8.1", "guidellm", _guidellm, _guidellm_outcome),
    Tool("aiperf", "aiperf==0.13.0", "aiperf", _aiperf, _aiperf_outcome),
)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
