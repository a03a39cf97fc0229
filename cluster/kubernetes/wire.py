"""The JSON of Kubernetes' API, as far as listing and watching EndpointSlices goes. Pure.

    GET .../endpointslices?labelSelector=...                      all, and the version they are of
    GET .../endpointslices?watch=1&resourceVersion=...            one JSON object a line

    {"type": "ADDED" | "MODIFIED" | "DELETED", "object": {the slice, as it is or was}}
    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12746"}}}
    {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", ...}}

A bookmark says that everything up to its version has been told: a watch may begin there, and
not where the last slice changed, which the server may have forgotten. Who asks for a
forgotten version gets 410, as the answer or, by newer servers, as the first event.

Source: "Kubernetes API Concepts" (Efficient detection of changes, Watch bookmarks) in the
documentation of Kubernetes 1.33; client-go, tools/cache/reflector.go, handleAnyWatch.
"""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from pdgate.cluster.bounded import parsed

Body = dict[str, Any]

GONE: Final = 410
LONGEST_REASON: Final = 300


class KubernetesError(Exception):
    """The API server cannot be reached, or refuses; the message is for operators.

    Attributes:
        wait_seconds: For how long it asked to be left alone.
    """

    def __init__(self, message: str, wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


class WatchInterrupted(KubernetesError):
    """A watch cannot go on from where it is: everything is to be read anew."""


@dataclass(frozen=True, slots=True)
class KubernetesContents:
    """
    Attributes:
        slices: In the order in which they were written, as far as versions tell.
        version: Up to which they are complete.
    """

    slices: tuple[Body, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Written:
    slice: Body
    version: str


@dataclass(frozen=True, slots=True)
class Deleted:
    slice: Body
    version: str


@dataclass(frozen=True, slots=True)
class Bookmark:
    version: str


def path(namespace: str) -> str:
    return f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"


def listing(selector: str) -> str:
    return urlencode({"labelSelector": selector})


def one() -> str:
    """Any one, of whatever label: the smallest question whose answer needs the store."""
    return urlencode({"limit": 1})


def watching(selector: str, version: str, seconds: int) -> str:
    """Everything after that version; the server is to end it after so long."""
    return urlencode(
        {
            "labelSelector": selector,
            "watch": 1,
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": seconds,
        }
    )


def contents(body: bytes) -> KubernetesContents:
    """Raises KubernetesError."""
    try:
        answer = parsed(body)
        items, version = answer.get("items") or (), _version(answer)
        # What is no object is a slice without a name, for its reader to refuse.
        objects = (each if isinstance(each, dict) else {} for each in items)
        slices = tuple(sorted(objects, key=_written))
    except _NONSENSE as error:
        raise _nonsense(error) from None
    return KubernetesContents(slices, version)


def line(text: bytes) -> Written | Deleted | Bookmark:
    """One line of a watch. Raises WatchInterrupted, also for what cannot be read."""
    try:
        said = parsed(text)
        kind, about = said["type"], said["object"]
        if kind == "ERROR":
            raise WatchInterrupted(str(refusal(int(about.get("code") or 0), about)))
        version = _version(about)
    except _NONSENSE as error:
        raise WatchInterrupted(str(_nonsense(error))) from None
    match kind:
        case "ADDED" | "MODIFIED":
            return Written(about, version)
        case "DELETED":
            return Deleted(about, version)
        case "BOOKMARK":
            return Bookmark(version)
        case _:
            raise WatchInterrupted(f"no event of a watch is called {str(kind)[:40]!r}")


def refusal(status: int, answer: Any, wait_seconds: float = 0.0) -> KubernetesError:
    """The error for an answer that is not 200, which is a Status if the API server wrote it."""
    said = answer.get("message") if isinstance(answer, dict) else None
    why = f"{status} {said or 'and no reason'}"[:LONGEST_REASON]
    return WatchInterrupted(why) if status == GONE else KubernetesError(why, wait_seconds)


_NONSENSE = (ValueError, KeyError, TypeError, AttributeError)


def _nonsense(error: Exception) -> KubernetesError:
    return KubernetesError(f"what it answered cannot be read: {error!r}"[:LONGEST_REASON])


def _version(said: Body) -> str:
    version = said["metadata"]["resourceVersion"]
    if not isinstance(version, str):
        raise TypeError("a version that is no text")
    return version


def _written(slice_: Body) -> int:
    """Later is more; versions are numbers of one counter, but that is not promised for ever."""
    metadata = slice_.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return int(version) if isinstance(version, str) and version.isdecimal() else 0
