"""Only an engine's own failures say something of its health."""

import pytest

from pdgate.protocols.errors import (
    BadRequest,
    EngineBusy,
    EngineFailed,
    EngineRefused,
    EngineRejected,
    EngineTooSlow,
    GatewayError,
    NoInstance,
)
from pdgate.scheduling.health.cause import Cause, cause_of


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (EngineRefused(""), Cause.TRANSPORT),
        (EngineFailed(""), Cause.ENGINE),
        (EngineTooSlow(""), Cause.ENGINE),
        (EngineBusy(""), Cause.LOAD),
        (EngineRejected(400, (), b""), Cause.CALL),
        (EngineRejected(429, (), b""), Cause.CALL),
        (BadRequest(""), Cause.CALL),
        (NoInstance(""), Cause.OURS),
    ],
    ids=lambda one: type(one).__name__,
)
def test_each_failure_has_an_owner(error: GatewayError, cause: Cause) -> None:
    assert cause_of(error) is cause
