"""Ids of responses lead to their engine, and to nobody else."""

import pytest

from pdgate.protocols import response_id


def test_an_id_leads_to_the_engine_that_it_was_made_for() -> None:
    names = [response_id.new(name, "m") for name in ("d0", "d0", "d1")]

    assert len(set(names)) == 3
    assert [response_id.tags_in(name)[0] == response_id.tag("d0") for name in names] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "name", ["", "resp_1", "resp_" + "0" * 32, "msg_" + "0" * 24 + "_00000000"]
)
def test_ids_of_others_lead_nowhere(name: str) -> None:
    assert response_id.tags_in(name) == ("", "")


@pytest.mark.parametrize("model", [None, "m", "org/adapter"])
def test_an_id_says_of_which_model_it_is(model: str | None) -> None:
    _, tag = response_id.tags_in(response_id.new("d0", model))

    assert tag == ("" if model is None else response_id.tag(model))
