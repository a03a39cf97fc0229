# Stock vLLM with this project's connector beside it, for --pdd-protocol vllm-kvt and decode-first (docs/vllm-connector.md).
#
#   docker build -f deploy/docker/vllm.Dockerfile -t pdgate-vllm:v0.32.0 .
FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
# For any Python: vLLM's is another one than this stage's.
RUN pip install --no-cache-dir build && PDGATE_COMPILE=0 python -m build --wheel --outdir /wheels

FROM vllm/vllm-openai:v0.32.0
COPY --from=build /wheels /tmp/wheels
# vLLM has chosen its versions already, and they must stay.
RUN pip install --no-cache-dir --no-deps /tmp/wheels/*.whl && pip install --no-cache-dir 'msgspec>=0.21' 'redis>=6,<8' && rm -rf /tmp/wheels
