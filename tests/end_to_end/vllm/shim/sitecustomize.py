"""Lets vLLM's processes wait without taking the cores from one another.

For a second after each step, vLLM 0.32.0's engine and worker wait for one another in a loop
around `os.sched_yield` (vllm/distributed/device_communicators/shm_broadcast.py). Where several
instances share two cores, Linux's scheduler moves whoever yields that often to the far end of
its queue, and a step that takes milliseconds then takes up to half a minute. A short sleep
gives the core away just as well, and is not held against the sleeper.
"""

import os
import time

WAIT_SECONDS = 50e-6


def _sleep() -> None:
    time.sleep(WAIT_SECONDS)


os.sched_yield = _sleep
