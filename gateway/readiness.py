"""Readiness: whether calls can be served now, for what routes traffic to us; what GET /ready says.

    {"ready": false,
     "missing": [{"protocol": "vllm-nixl", "role": "decode", "why": "none is up"}],
     "models": {"m": {"ready": false, "prefill": 1, "decode": 0, "plain": 0}}}

It is read from the instances when it is asked for, so it is never older than what calls and
probes have found. The numbers are of engines that calls may be sent to now; among them are
doubted ones if there are no others (scheduling/eligible.py), as their calls are served.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pdgate.cluster.jobs import Jobs
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoints import Endpoints

ROLES = (Role.PREFILL, Role.DECODE, Role.PLAIN)


class Note(Protocol):
    """What /ready tells beside that, of something without which calls are served all the same."""

    def as_json(self) -> Mapping[str, Any] | None:
        """Note without names and addresses, as /ready is public; None for none."""


class JobNote:
    """Background jobs (cluster/jobs.py) that do not run; calls are served without any of them."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def as_json(self) -> dict[str, int] | None:
        """Jobs without their names, as /ready is public."""
        failed = sum(bool(job.restarts) and not job.running for job in self._jobs)
        return {"failed": failed} if failed else None


def readiness(endpoints: Endpoints, *, of_models: bool = True) -> dict[str, Any]:
    """Ready means: of every role that is needed there is an engine. `of_models`: say it of each as well."""
    missing = [
        {"protocol": protocol, "role": role, "why": why}
        for why, found in (
            ("none is up", endpoints.missing_roles()),
            ("none is configured", endpoints.unpaired_roles()),
        )
        for protocol, role in found
    ]
    is_ready = not missing and any(endpoint.may_serve for endpoint in endpoints)
    models = {model: of_model(endpoints, model) for model in endpoints.models() if of_models}
    return {"ready": is_ready, "missing": missing, "models": models}


def of_model(endpoints: Endpoints, model: str) -> dict[str, Any]:
    """Readiness of one model, whatever the others lack; one that no engine serves is not ready."""
    try:
        eligible = endpoints.eligible(model)
    except GatewayError:
        return {"ready": False, **dict.fromkeys(map(str, ROLES), 0)}
    is_ready = eligible.disaggregated or bool(eligible.up[Role.PLAIN])
    return {"ready": is_ready, **{role.value: len(eligible.up[role]) for role in ROLES}}
