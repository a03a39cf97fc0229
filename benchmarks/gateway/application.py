"""Application of FastAPI on uvicorn, as somebody would serve it who has servers of their own (docs/embedding.md).

python -m benchmarks.gateway.application PORT PREFILL DECODE KEYS_FILE
"""

import sys

import uvicorn

from benchmarks.gateway.targets.pdgate import LIMIT
from pdgate import create_app


def main(port: str, prefill: str, decode: str, keys_file: str) -> None:
    engines = [{"url": prefill, "role": "prefill"}, {"url": decode, "role": "decode"}]
    app = create_app(
        {
            "pdd_protocol": "vllm-nixl",
            "instances": engines,
            "api_keys_file": keys_file,
            "admission": {"prefill_concurrency": LIMIT, "decode_concurrency": LIMIT},
        }
    )
    uvicorn.run(app, port=int(port), loop="uvloop", http="httptools", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
