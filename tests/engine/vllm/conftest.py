import pytest

from tests.engine.vllm.worker_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()
