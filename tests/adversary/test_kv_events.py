"""KV events against strangers: they say the tokens of all prompts, so a fleet's are for its members.

What is at stake first: whoever connected to the port read every prompt, those of before as well (the
replay), and whoever answered at it made the gateway believe what it liked.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from pdgate.cluster import secret
from pdgate.cluster.kv_events import curve
from pdgate.engine.kv_events.publisher import END, Publisher
from pdgate.engine.kv_events.serving import publishing
from pdgate.engine.settings import EngineSettings
from pdgate.gateway.kv_events.sources import BadSource, EventSource, from_answer
from pdgate.protocols.instance import Instance, Role
from pdgate.transfer.runtime.fleet import Identity, Keyring
from tests.gateway.kv_events.hearing import hearing, lossy
from tests.support.kv_strangers import SECRET, Recorder, member, open_identity, stranger
from tests.support.waiting import PATIENCE_SECONDS

ANY_PORT = "tcp://127.0.0.1:0"
PROMPT = "the patient is called Ada"
TURNED_AWAY = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)


@contextmanager
def publisher(identity: Identity | None = None) -> Iterator[Publisher]:
    made = Publisher(ANY_PORT, ANY_PORT, "kv", identity=identity or member())
    with closing(made):
        made.publish([{"type": PROMPT}])
        yield made


def told(one: Publisher) -> bytes:
    """What its engine answers to who asks where it publishes."""
    said = {
        "endpoint": one.endpoint,
        "replay_endpoint": one.replay_endpoint,
        "topic": one.topic,
        curve.FIELD: one.introduction,
    }
    return json.dumps({"0": said}).encode()


def source(one: Publisher, *held: str) -> EventSource:
    """As it is to who asks, and has these secrets."""
    engine = Instance("p0", "http://127.0.0.1:8000", Role.PREFILL, "vllm-kvt")
    return from_answer(told(one), engine, held or (SECRET,))[0]


class Ear:
    """A socket of a test.

    Attributes:
        came_in: Whether it was let in, once that is known.
    """

    def __init__(self, kind: int, at: str, proven: curve.Listening | None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(kind)
        self.socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE_SECONDS * 1000))
        if kind == zmq.SUB:
            self.socket.subscribe(b"")
        if proven is not None:
            self.socket.curve_serverkey = proven.there
            self.socket.curve_publickey = proven.ours.public
            self.socket.curve_secretkey = proven.ours.private
        monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | TURNED_AWAY)
        monitor.setsockopt(zmq.RCVTIMEO, int(PATIENCE_SECONDS * 1000))
        self.socket.connect(at)
        self.came_in = recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        # Where it was turned away, the socket may have lost its pipe: to send would wait for ever.
        if kind == zmq.DEALER and self.came_in:
            self.socket.send_multipart((b"", bytes(8)))

    def close(self) -> None:
        self.context.destroy(linger=0)


def plain(_: Publisher) -> curve.Listening | None:
    """As stock vLLM is listened to."""
    return None


def with_another_secret(one: Publisher) -> curve.Listening | None:
    return curve.Listening(curve_key(one), curve.listener(secrets.token_hex(32)))


def with_a_key_of_its_own(one: Publisher) -> curve.Listening | None:
    return curve.Listening(curve_key(one), curve.publisher())


def with_the_publishers_key(one: Publisher) -> curve.Listening | None:
    """Which is said to everybody."""
    return curve.Listening(
        curve_key(one), curve.CurvePair(curve_key(one), curve.publisher().private)
    )


def curve_key(one: Publisher) -> bytes:
    assert one.introduction is not None
    return one.introduction["key"].encode()


@pytest.mark.parametrize("kind", [zmq.SUB, zmq.DEALER])
@pytest.mark.parametrize(
    "key", [plain, with_another_secret, with_a_key_of_its_own, with_the_publishers_key]
)
def test_a_stranger_hears_no_batch_and_has_none_repeated(
    key: Callable[[Publisher], curve.Listening | None], kind: int
) -> None:
    with publisher() as one:
        at = one.endpoint if kind == zmq.SUB else one.replay_endpoint
        with closing(Ear(kind, at, key(one))) as ear:
            assert not ear.came_in


def test_a_member_hears_batches_and_has_them_repeated() -> None:
    with (
        publisher() as one,
        closing(Ear(zmq.DEALER, one.replay_endpoint, source(one).proven)) as ear,
    ):
        assert ear.came_in
        assert PROMPT.encode() in ear.socket.recv_multipart()[-1]
        assert ear.socket.recv_multipart()[2] == END


async def test_the_gateway_listens_as_a_member() -> None:
    with lossy(identity=member()) as one, hearing(source(one)) as listening:
        one.says("a", "b")
        await listening.hears("a", "b")
        await listening.subscribed(one)


def test_who_listens_between_reads_nothing() -> None:
    """The port of stock vLLM, as of an engine without a secret, gives the text away."""
    for identity, readable in ((open_identity(), True), (member(), False)):
        with publisher(identity) as one:
            recorder = Recorder(("127.0.0.1", int(one.replay_endpoint.rpartition(":")[2])))
            with stranger(recorder) as between:
                proven = source(one).proven if not readable else None
                at = f"tcp://127.0.0.1:{between}"
                with closing(Ear(zmq.DEALER, at, proven)) as ear:
                    assert PROMPT.encode() in ear.socket.recv_multipart()[-1]
            assert (PROMPT.encode() in recorder.back) is readable
            assert SECRET.encode() not in recorder.back + recorder.there


def test_an_engine_of_another_fleet_is_not_believed() -> None:
    """Nor one that repeats what a member said of itself, with a key of its own."""
    with publisher(Identity(Keyring((secrets.token_hex(32),)))) as other, publisher() as ours:
        with pytest.raises(BadSource, match="it proves none of ours"):
            source(other)
        assert ours.introduction is not None
        forged = {**ours.introduction, "key": curve.publisher().public.decode()}
        with pytest.raises(curve.UnprovenPublisher):
            curve.listening({curve.FIELD: forged}, [SECRET])


def test_without_the_secret_an_engine_says_what_is_missing() -> None:
    with publisher() as one, pytest.raises(curve.UnprovenPublisher, match="and we have none"):
        curve.listening({curve.FIELD: one.introduction}, [])


@pytest.mark.parametrize(
    "introduced", [{}, "x", {"key": "k", "proof": ""}, {"key": "é" * 40, "proof": "é"}, [1], 7]
)
def test_an_introduction_that_makes_no_sense_is_none(introduced: object) -> None:
    with pytest.raises(curve.UnprovenPublisher, match="no key with a proof"):
        curve.listening({curve.FIELD: introduced}, [SECRET])


def test_what_an_engine_says_of_itself_lets_nobody_listen() -> None:
    with publisher() as one:
        said = told(one)
        assert SECRET.encode() not in said
        assert curve.listener(SECRET).private not in said
        assert curve.listener(SECRET).public not in said


def test_a_fleet_changes_its_secret_and_who_listens_goes_along(tmp_path: Path) -> None:
    """Without a start of the engine: who comes next is asked for what holds then."""
    file = tmp_path / "kv-secret"
    old, new = secrets.token_hex(32), secrets.token_hex(32)
    file.write_text(old)
    with publisher(Identity(Keyring(path=str(file)))) as one:
        before = source(one, old)
        for lines, ours in (
            ([old, new], [old, new]),
            ([new, old], [old, new]),
            ([new], [new]),
        ):
            file.write_text("\n".join(lines))
            with closing(Ear(zmq.SUB, one.endpoint, source(one, *ours).proven)) as ear:
                assert ear.came_in
        with closing(Ear(zmq.SUB, one.endpoint, before.proven)) as ear:
            assert not ear.came_in
        assert secret.several(str(file)) == [new]


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.0.2.1"])
def test_beyond_loopback_an_engine_without_a_secret_publishes_nothing(host: str) -> None:
    with (
        pytest.raises(ValueError, match="without a KV secret"),
        publishing(EngineSettings(kv_host=host, kv_events_port=0), open_identity()),
    ):
        pass


def test_on_loopback_it_publishes_without_one_as_vllm_does() -> None:
    with (
        publishing(EngineSettings(kv_events_port=0), open_identity()) as one,
    ):
        assert one is not None
        assert one.introduction is None
        assert "127.0.0.1]:" in one.endpoint
