from pdgate.engine.vllm.names import Names


def test_a_delegated_prefill_has_two_names_until_its_blocks_are_back() -> None:
    names = Names()
    assert names.join("kvt-1", "cmpl-kvt-1-0-ab")

    assert names.ours("cmpl-kvt-1-0-ab") == "kvt-1"
    assert names.vllms("kvt-1") == "cmpl-kvt-1-0-ab"

    names.forget("cmpl-kvt-1-0-ab")
    names.forget("cmpl-kvt-1-0-ab")
    assert names.vllms("kvt-1") == "kvt-1"


def test_a_second_request_does_not_take_a_name() -> None:
    names = Names()
    names.join("kvt-1", "first")

    assert not names.join("kvt-1", "second")
    assert names.vllms("kvt-1") == "first"
    assert names.ours("second") == "second"


def test_all_other_requests_have_one_name() -> None:
    names = Names()

    assert names.ours("cmpl-r-0") == names.vllms("cmpl-r-0") == "cmpl-r-0"
