"""Devices whose memory the host cannot touch: allocation, copies on streams, events, sharing.

    base.py      the contract
    fake.py      a device for tests: nothing happens until it is waited for, and then out of order
    cuda.py      an NVIDIA GPU, by the driver alone (driver.py): neither PyTorch nor CuPy is needed
    sharing.py   memory of one process, opened by another of the same host
    staging.py   pinned host memory that bytes pass through, where a backend moves host memory only

docs/device-memory.md says what waits for what.
"""
