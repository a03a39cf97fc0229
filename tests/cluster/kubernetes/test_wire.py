"""The JSON of lists and watches, as recorded from Kubernetes 1.33 and 1.36."""

import json

import pytest

from pdgate.cluster.kubernetes import wire
from pdgate.cluster.kubernetes.wire import (
    Bookmark,
    Deleted,
    KubernetesContents,
    KubernetesError,
    WatchInterrupted,
    Written,
)

SLICE = {"metadata": {"name": "d-1", "resourceVersion": "43"}, "addressType": "IPv4"}


def test_a_list_is_of_a_version() -> None:
    body = {"kind": "EndpointSliceList", "metadata": {"resourceVersion": "57"}, "items": [SLICE]}

    assert wire.contents(json.dumps(body).encode()) == KubernetesContents((SLICE,), "57")


def test_slices_are_in_the_order_of_their_writing() -> None:
    """A server lists them by name."""
    late = {"metadata": {"name": "a", "resourceVersion": "100"}}
    body = {"metadata": {"resourceVersion": "100"}, "items": [late, SLICE]}

    assert wire.contents(json.dumps(body).encode()).slices == (SLICE, late)


def test_versions_need_not_be_numbers() -> None:
    odd = {"metadata": {"name": "a", "resourceVersion": "v-9"}}
    body = {"metadata": {"resourceVersion": "v-10"}, "items": [odd]}

    assert wire.contents(json.dumps(body).encode()) == KubernetesContents((odd,), "v-10")


def test_what_is_no_object_is_left_for_the_reader_of_slices_to_refuse() -> None:
    body = {"metadata": {"resourceVersion": "7"}, "items": [7, None, SLICE]}

    assert wire.contents(json.dumps(body).encode()).slices == ({}, {}, SLICE)


def test_an_empty_list_may_be_null() -> None:
    assert wire.contents(b'{"metadata": {"resourceVersion": "7"}, "items": null}').slices == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"<html>",
        b"{}",
        b'{"metadata": {"resourceVersion": 7}}',
        b'{"metadata": {"resourceVersion": "7"}, "items": 8}',
        b"[" * 200_000,
    ],
)
def test_a_list_that_cannot_be_read_is_an_error(body: bytes) -> None:
    with pytest.raises(KubernetesError, match="cannot be read"):
        wire.contents(body)


def event(kind: str, about: object) -> bytes:
    return json.dumps({"type": kind, "object": about}).encode()


def test_events_of_a_watch() -> None:
    assert wire.line(event("ADDED", SLICE)) == Written(SLICE, "43")
    assert wire.line(event("MODIFIED", SLICE)) == Written(SLICE, "43")
    assert wire.line(event("DELETED", SLICE)) == Deleted(SLICE, "43")


def test_a_bookmark_is_a_version_and_nothing_else() -> None:
    line = (
        b'{"type":"BOOKMARK","object":{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1",'
        b'"metadata":{"resourceVersion":"12746","creationTimestamp":null},"addressType":"",'
        b'"endpoints":null,"ports":null}}'
    )

    assert wire.line(line) == Bookmark("12746")


def test_a_version_that_is_forgotten_interrupts_the_watch() -> None:
    line = (
        b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},'
        b'"status":"Failure","message":"too old resource version: 1 (3171407)",'
        b'"reason":"Expired","code":410}}'
    )

    with pytest.raises(WatchInterrupted, match=r"410 too old resource version"):
        wire.line(line)


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b"7",
        b"{}",
        b'{"type": "ADDED"}',
        b'{"type": "ADDED", "object": {}}',
        b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": null}}}',
        b'{"type": "ERROR", "object": 7}',
        b'{"type": "ERROR", "object": {"code": "many"}}',
        event("RENAMED", SLICE),
        b'{"type":' + b"[" * 200_000,
    ],
)
def test_an_event_that_cannot_be_read_interrupts_the_watch(line: bytes) -> None:
    with pytest.raises(WatchInterrupted):
        wire.line(line)


def test_a_refusal_says_what_the_server_said() -> None:
    said = {"kind": "Status", "code": 403, "message": "endpointslices is forbidden"}

    assert str(wire.refusal(403, said)) == "403 endpointslices is forbidden"
    assert str(wire.refusal(502, None)) == "502 and no reason"
    assert len(str(wire.refusal(500, {"message": "x" * 10_000}))) == wire.LONGEST_REASON


def test_a_namespace_is_one_step_of_a_path() -> None:
    assert wire.path("a/../b") == "/apis/discovery.k8s.io/v1/namespaces/a%2F..%2Fb/endpointslices"
