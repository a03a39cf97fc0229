"""Stands in for the `nixl` distribution, which only picks a CUDA flavour and re-exports it.

vLLM imports `nixl._api` and `nixl._bindings`; the build that is installed here calls
itself nixl_cu12.
"""
