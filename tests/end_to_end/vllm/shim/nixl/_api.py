"""nixl_cu12's API, with a progress thread that sleeps between its polls.

nixl 1.5.1 leaves `pthrDelay` at 0, so that the progress thread of every agent keeps one
core busy while nothing happens. Three instances on two cores then hardly answer.
"""

from typing import Any

from nixl_cu12 import _api
from nixl_cu12._api import nixl_agent, nixl_agent_config

__all__ = ["nixl_agent", "nixl_agent_config"]

POLL_MICROSECONDS = 1000

_agent = _api.nixlBind.nixlAgent


def _patient_agent(name: str, config: Any) -> Any:
    config.pthrDelay = POLL_MICROSECONDS
    return _agent(name, config)


_api.nixlBind.nixlAgent = _patient_agent
