"""vLLM's hooks: an exception in one would end the engine, with all its requests."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from pdgate.engine.vllm import guard
from pdgate.engine.vllm.guard import HookComplaints
from pdgate.engine.vllm.intent import LENT, PREFILL_ID
from pdgate.engine.vllm.orders import CancelOrder, Fetch, RefuseOrder
from pdgate.engine.vllm.reports import NOTHING, Results
from tests.engine.vllm.fake_surface import (
    Factory,
    FullAttentionSpec,
    Role,
    SlidingWindowSpec,
    Status,
    cache_groups,
    config,
    install,
)
from tests.engine.vllm.fake_vllm import Request

FETCH = {"remote_host": "h", "remote_port": 1, "do_remote_prefill": True}


class Broken:
    """Whatever is asked of it raises."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(f"a bug in {name}")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    install(monkeypatch)
    monkeypatch.setattr(guard, "HOOKS", HookComplaints())
    return importlib.import_module("pdgate.engine.vllm.connector")


@pytest.fixture
def scheduler(module: Any) -> Any:
    return module.PdgateConnector(config(), Role.SCHEDULER, cache_groups())


@pytest.fixture
def worker(module: Any) -> Any:
    """Before it has registered its KV cache."""
    return module.PdgateConnector(config(), Role.WORKER, cache_groups())


def test_vllm_finds_it_by_its_name_alone(module: Any) -> None:
    """MultiConnector looks a child's counts up so, and the API server ends where there is none."""
    path = "pdgate.engine.vllm.connector"
    assert Factory.modules == {"PdgateConnector": f"{path}:PdgateConnector"}

    importlib.reload(module)


def request(params: dict[str, Any], status: Status = Status.FINISHED_ERROR) -> Any:
    found: Any = Request("cmpl-r-0", params)
    found.status = status
    return found


def blocks(*ids: int) -> Any:
    return SimpleNamespace(get_block_ids=lambda: (list(ids),))


def test_a_load_is_ordered_with_the_next_step(scheduler: Any) -> None:
    asked = request(FETCH)

    assert scheduler.get_num_new_matched_tokens(asked, 0) == (9, True)
    scheduler.update_state_after_alloc(asked, blocks(5, 6, 7), 9)

    (order,) = scheduler.build_connector_meta(SimpleNamespace()).orders
    assert isinstance(order, Fetch)


LOAN = {"do_remote_decode": True, PREFILL_ID: "kvt-1", LENT: 8}


@pytest.mark.parametrize(("policy", "tokens"), [("recompute", 8), ("fail", 0)])
def test_loans_are_read_where_vllm_computes_what_does_not_come(
    policy: str, tokens: int, module: Any
) -> None:
    scheduler = module.PdgateConnector(config(policy=policy), Role.SCHEDULER, cache_groups())

    assert scheduler.get_num_new_matched_tokens(request(LOAN), 0) == (tokens, tokens > 0)


@pytest.mark.parametrize(
    ("outer", "ours", "borrows"),
    [
        ("recompute", "recompute", True),
        ("fail", "recompute", False),
        ("recompute", "fail", False),
    ],
)
def test_a_child_of_multi_connector_goes_by_both_policies(
    outer: str, ours: str, borrows: bool, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's scheduler goes by the outer one, which the child's config does not have."""
    monkeypatch.setattr(
        module.surface, "get_current_vllm_config_or_none", lambda: config(policy=outer)
    )

    worker = module.PdgateConnector(config(policy=ours), Role.WORKER, cache_groups())

    assert worker._settings.recomputes is borrows


@pytest.mark.parametrize("hook", ["request_finished", "request_finished_all_groups"])
def test_a_load_that_failed_is_told_as_an_abort(hook: str, scheduler: Any) -> None:
    """By the status that vLLM reads when the hook has returned."""
    asked = request(FETCH)
    scheduler.update_state_after_alloc(asked, blocks(5, 6, 7), 9)

    assert getattr(scheduler, hook)(asked, []) == (False, None)

    assert asked.status is Status.FINISHED_ABORTED


def test_any_other_error_stays_one(scheduler: Any) -> None:
    asked = request({"unrelated": 1})

    assert scheduler.request_finished(asked, []) == (False, None)

    assert asked.status is Status.FINISHED_ERROR


def test_no_hook_of_the_scheduler_raises(module: Any, scheduler: Any) -> None:
    scheduler._scheduler = Broken()

    assert scheduler.get_num_new_matched_tokens(request(FETCH), 0) == (0, False)
    assert scheduler.request_finished(request(FETCH), [1]) == (False, None)
    assert scheduler.request_finished_all_groups(request(FETCH), 7) == (False, None)
    scheduler.set_xfer_handshake_metadata({0: module.Handshake({})})
    scheduler.set_xfer_handshake_metadata({})
    scheduler.update_connector_output(Broken())
    scheduler.update_state_after_alloc(request(FETCH), Broken(), 0)
    assert scheduler.build_connector_meta(Broken()).orders == ()


def test_a_load_that_cannot_be_ordered_fails(scheduler: Any) -> None:
    """vLLM would wait for its end for ever."""
    scheduler.update_state_after_alloc(request(FETCH), Broken(), 9)

    (order,) = scheduler.build_connector_meta(SimpleNamespace()).orders
    assert isinstance(order, RefuseOrder)


def test_progress_that_cannot_be_read_is_not_logged_on_every_step(
    scheduler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.update_state_after_alloc(request({"do_remote_decode": True}), blocks(1, 2, 3), 0)

    for _ in range(1000):
        scheduler.build_connector_meta(Broken())

    assert caplog.text.count("build_connector_meta broke") == 1


def test_no_hook_of_the_worker_raises(module: Any, worker: Any) -> None:
    worker._running = Broken()
    orders = module.StepOrders(())

    worker.handle_preemptions(orders)
    worker.bind_connector_metadata(orders)
    worker.start_load_kv(None)
    worker.wait_for_layer_load("layers.0")
    worker.save_kv_layer("layers.0", None, None)
    worker.wait_for_save()
    assert worker.get_transfer_results(set()).failed_recving == set()
    assert worker.get_finished(set()) == (None, None)
    assert worker.get_kv_connector_stats() is None
    assert worker.get_handshake_metadata() is None
    assert worker.build_connector_worker_meta() is None
    worker.shutdown()


def test_hooks_before_the_kv_cache_is_known_do_nothing(module: Any, worker: Any) -> None:
    worker.bind_connector_metadata(module.StepOrders(()))
    worker.save_kv_layer("layers.0", None, None)

    assert worker.get_finished(set()) == (set(), set())
    assert worker.get_kv_connector_stats() is None
    worker.shutdown()


@pytest.mark.parametrize(
    ("settings", "groups", "why"),
    [
        (config(context_parallel=2), [], "decode_context_parallel_size is 2"),
        (config(ubatching=True), [], "--enable-dbo, --ubatch-size"),
        (config(), [FullAttentionSpec, SlidingWindowSpec], "FullAttentionSpec, SlidingWindowSpec"),
        (config(), [SlidingWindowSpec], "this model has SlidingWindowSpec"),
        (config(mode="pul"), [], "mode"),
    ],
)
def test_what_cannot_work_ends_the_start(
    settings: Any, groups: list[type], why: str, module: Any
) -> None:
    with pytest.raises(ValueError, match=why):
        module.PdgateConnector(settings, Role.WORKER, cache_groups(*groups))


def test_sleep_mode_is_refused_by_both_releases(module: Any) -> None:
    """By its setting here; 0.33 asks the connector, by a name that may be a method or not."""
    asleep = config()
    asleep.model_config.enable_sleep_mode = True
    with pytest.raises(ValueError, match="enable-sleep-mode"):
        module.PdgateConnector(asleep, Role.WORKER, cache_groups())

    assert not module.PdgateConnector.supports_sleep_mode
    assert not module.PdgateConnector.supports_sleep_mode()


def test_a_load_that_failed_at_one_worker_is_cancelled_at_the_others(
    module: Any, scheduler: Any
) -> None:
    scheduler.update_state_after_alloc(request(FETCH), blocks(5, 6, 7), 9)
    scheduler.build_connector_meta(SimpleNamespace())
    failed = module.FailedLoads(frozenset({"cmpl-r-0"})).aggregate(
        module.FailedLoads(frozenset({"unknown"}))
    )

    scheduler.update_connector_output(SimpleNamespace(kv_connector_worker_meta=failed))

    assert scheduler.build_connector_meta(SimpleNamespace()).orders == (CancelOrder("cmpl-r-0"),)


def test_vllm_hears_of_blocks_of_a_silent_peer_in_the_step_of_the_load(
    module: Any, worker: Any
) -> None:
    """It asks for them behind the results; a step later they may be another request's."""
    failed = Results(frozenset(), frozenset(), frozenset({"d1"}), frozenset({5, 6}))
    said = iter([failed, NOTHING])
    worker._running = SimpleNamespace(worker=SimpleNamespace(results=lambda: next(said)))

    assert worker.get_transfer_results(set()).failed_recving == {"d1"}
    assert worker.get_block_ids_with_load_errors() == {5, 6}

    worker.get_transfer_results(set())
    assert worker.get_block_ids_with_load_errors() == set()
