"""vLLM's own load generator, as it comes, against the gateway over a pair: no request fails."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.end_to_end.vllm.engines import MODEL, NIXL, Pair
from tests.end_to_end.vllm.gateway import Gateway

PROMPTS = 12


def test_vllm_bench_serve(pair: Pair, gateways: Mapping[str, Gateway], tmp_path: Path) -> None:
    if pair.transfer != NIXL:
        pytest.skip("one pair is enough: the generator sees the gateway only")
    vllm = Path(os.environ["PDGATE_VLLM_VENV"]) / "bin" / "vllm"

    ran = subprocess.run(
        [
            *(str(vllm), "bench", "serve", "--backend", "openai-chat"),
            *("--base-url", gateways["staged"].url, "--endpoint", "/v1/chat/completions"),
            *("--model", MODEL, "--tokenizer", os.environ["PDGATE_VLLM_MODEL"]),
            *("--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "8"),
            *("--num-prompts", str(PROMPTS), "--max-concurrency", "4"),
            *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "said.json"),
        ],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads((tmp_path / "said.json").read_text())
    assert said["completed"] == PROMPTS
    assert said["total_output_tokens"] > 0
