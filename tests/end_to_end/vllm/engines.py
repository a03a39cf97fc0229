"""Stock vLLM instances on the CPU, alone and in pairs that hand KV over.

    single           no connector: what everything is compared with
    NIXL pair        P and D, D pulls over UCX; a side channel port each
    Mooncake pair    P writes to D over TCP; P's bootstrap port tells D where P is
    pdgate pairs     our own connector, over each of our transfer backends; D asks P's KV port

Sources: vLLM 0.32.0, vllm/envs.py and the connectors' own start-up checks; the flags that
are not obvious have their reason beside them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import files
from pathlib import Path
from typing import Any, Final

import redis

import pdgate
from tests.end_to_end.vllm.forks import PreloadedVllm, preloaded
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import Child, child

MODEL: Final = "tiny"
BLOCK: Final = 32
"""Tokens in a KV block; vLLM's CPU attention wants a multiple of 32."""

START_SECONDS: Final = 900
"""Of CPU time one takes 5, and by bin/vllm 20; on two cores with a load of 15 three of these took 190. An end is noticed."""
LEASE_SECONDS: Final = 8.0
SHIM: Final = Path(__file__).parent / "shim"

KV_EVENTS: Final[Mapping[str, Any]] = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:0",
    "replay_endpoint": "tcp://*:0",
}

FLAGS: Final[Sequence[str]] = (
    *("--served-model-name", MODEL),
    *("--host", LOOPBACK),
    # Nothing is compiled and nothing rounded, so that equal prompts give equal tokens.
    *("--dtype", "float32"),
    "--enforce-eager",
    *("--max-model-len", "2048"),
    *("--max-num-batched-tokens", "2048"),
    *("--max-num-seqs", "16"),
    # Calls of token ids.
    "--enable-scale-out",
    *("--block-size", str(BLOCK)),
    # Few, so that a block that is never given back shows in the share that is in use.
    *("--num-gpu-blocks-override", "256"),
    # On ports of their own choice, which they tell who asks.
    *("--kv-events-config", json.dumps(KV_EVENTS)),
)

ENV: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": LOOPBACK,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Three instances share the cores; bound to one each they would starve one another.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "UCX_TLS": "tcp,sm,self",
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": LOOPBACK,
    "MC_TCP_BIND_ADDRESS": LOOPBACK,
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where vLLM is installed, what it serves, and where it writes its logs.

    Attributes:
        preloaded: Has imported vLLM, so that an engine starts in seconds.
    """

    venv: Path
    model: Path
    logs: Path
    preloaded: PreloadedVllm

    @staticmethod
    def env(venv: Path, logs: Path) -> Mapping[str, str]:
        """Of each instance."""
        return {
            **ENV,
            "PYTHONPATH": python_path(logs),
            "LD_LIBRARY_PATH": f"{venv}/lib/borrowed",
        }

    def start(
        self,
        stack: ExitStack,
        name: str,
        port: int,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        by_command: bool = False,
    ) -> Child:
        """Starts an instance, and does not wait for it.

        Args:
            by_command: As an operator starts it, by bin/vllm, which imports all that there is.
        """
        words = [str(self.model), "--port", str(port), *FLAGS, *flags]
        log, name = self.logs / f"{name}.log", f"vLLM {name}"
        if not by_command:
            return stack.enter_context(self.preloaded.serve(words, env or {}, log, name))
        added = {**self.env(self.venv, self.logs), **(env or {})}
        command = [f"{self.venv}/bin/vllm", "serve", *words]
        return stack.enter_context(child(command, env=added, log=log, name=name))


@contextmanager
def fleet_of(venv: Path, model: Path, logs: Path) -> Iterator[Fleet]:
    with preloaded(venv / "bin/python", Fleet.env(venv, logs), logs) as process:
        yield Fleet(venv, model, logs, process)


def python_path(logs: Path) -> str:
    """The shim, pdgate and Redis' client as these tests import them, and no other packages.

    Its metadata is there because backends are found by entry point.
    """
    site = logs / "site"
    if not site.exists():
        site.mkdir()
        (site / "pdgate").symlink_to(Path(pdgate.__file__).parent)
        # vLLM brings no client of the prefill queue along.
        (site / "redis").symlink_to(Path(redis.__file__).parent)
        for file in files("pdgate") or ():
            if file.name == "entry_points.txt":
                metadata = Path(str(file.locate())).parent
                (site / metadata.name).symlink_to(metadata)
    return f"{SHIM}:{site}"


@dataclass(frozen=True, slots=True)
class Engine:
    """An instance that is up."""

    url: str
    process: Child


@dataclass(frozen=True, slots=True)
class Transfer:
    """A vLLM connector, and how an instance and the gateway are told about it.

    Attributes:
        name: Of the pair, in logs and test ids.
        connector: `--kv-transfer-config` of an instance at an API port and a KV port.
        port_variable: Names the port at which an instance can be asked for its KV, where
            that is a variable of the environment.
        prefill_flag: The gateway's flag for a P at a url whose KV port is at an address.
        computed_by_decode: How many prompt tokens D computes of a call that crossed; the
            others count the last one as transferred, and compute it all the same.
        more_env: Further variables of both instances.
    """

    name: str
    protocol: str
    connector: Callable[[int, int], Mapping[str, object]]
    prefill_flag: Callable[[str, str], Sequence[str]]
    port_variable: str = ""
    computed_by_decode: int = 0
    more_env: Mapping[str, str] = field(default_factory=dict)

    def flags(self, role: str, api_port: int, kv_port: int) -> Sequence[str]:
        said = {**self.connector(api_port, kv_port), "kv_role": role}
        return "--kv-transfer-config", json.dumps(said)

    def env(self, kv_port: int) -> Mapping[str, str]:
        kv = {self.port_variable: str(kv_port)} if self.port_variable else {}
        return {**kv, **self.more_env}


def _kv_address(url: str, kv: str) -> Sequence[str]:
    return "--instance", f"role=prefill,url={url},kv={kv}"


def pdgate_over(
    backend: str,
    mode: str = "layerwise",
    mover: str = "process",
    lease_seconds: float = LEASE_SECONDS,
) -> Transfer:
    """A short lease, because it is P's only way to learn that D refused a call."""

    def connector(api_port: int, kv_port: int) -> dict[str, Any]:
        return {
            "kv_connector": "PdgateConnector",
            "kv_connector_module_path": "pdgate.engine.vllm.connector",
            "kv_port": kv_port,
            "kv_connector_extra_config": {
                "transfer": backend,
                "api": f"{LOOPBACK}:{api_port}",
                "lease_seconds": lease_seconds,
                "mode": mode,
                "mover": mover,
            },
        }

    name = f"pdgate-{backend}-{mode}"
    return Transfer(name, "vllm-kvt", connector, _kv_address, computed_by_decode=1)


NIXL: Final = Transfer(
    "vllm-nixl",
    "vllm-nixl",
    lambda api_port, kv_port: {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"},
    lambda url, kv: ("--prefill", url),
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
)

MOONCAKE: Final = Transfer(
    "vllm-mooncake",
    "vllm-mooncake",
    lambda api_port, kv_port: {
        "kv_connector": "MooncakeConnector",
        "kv_connector_module_path": "mooncake_on_cpu",
        "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
    },
    _kv_address,
    "VLLM_MOONCAKE_BOOTSTRAP_PORT",
)

PDGATE_TCP: Final = pdgate_over("tcp")
PDGATE_SHM: Final = pdgate_over("shm")
PDGATE_MOONCAKE: Final = pdgate_over("mooncake")
PDGATE_PULL: Final = pdgate_over("tcp", "pull")
PDGATE_PUSH: Final = pdgate_over("tcp", "push")


class Pair:
    """A prefill and a decode instance; a fresh P can take the place of the first.

    Attributes:
        serve: The flags that tell the gateway of the pair.
    """

    def __init__(self, fleet: Fleet, transfer: Transfer, stack: ExitStack) -> None:
        self.transfer = transfer
        self._fleet = fleet
        self._prefill_life = stack.enter_context(ExitStack())
        self._prefill_port, self._decode_port = free_port(), free_port()
        self._prefill_kv, self._decode_kv = free_port(), free_port()
        self._lives = 0
        # Both at once.
        starting = self._start_prefill()
        decode = self._start(stack, "d", "kv_consumer", self._decode_port, self._decode_kv)
        self.prefill = ready(starting, self._prefill_port)
        self.decode = ready(decode, self._decode_port)
        kv = self.prefill_kv
        self.serve: Sequence[str] = (
            *transfer.prefill_flag(self.prefill.url, kv),
            *("--decode", self.decode.url),
        )

    @property
    def prefill_kv(self) -> str:
        """host:port where P can be asked for its KV."""
        return f"{LOOPBACK}:{self._prefill_kv}"

    def restart_prefill(self) -> None:
        """The same addresses, but another engine id and none of the KV."""
        self._prefill_life.close()
        self.prefill = ready(self._start_prefill(), self._prefill_port)

    def _start_prefill(self) -> Child:
        self._lives += 1
        name = f"p{self._lives}"
        life = self._prefill_life
        return self._start(life, name, "kv_producer", self._prefill_port, self._prefill_kv)

    def _start(self, stack: ExitStack, name: str, role: str, port: int, kv_port: int) -> Child:
        transfer = self.transfer
        flags, env = transfer.flags(role, port, kv_port), transfer.env(kv_port)
        # One pair shows that nothing hangs on how the others are started, nor its second P.
        by_command = transfer is PDGATE_TCP and self._lives == 1
        name = f"{transfer.name}-{name}"
        return self._fleet.start(stack, name, port, flags, env, by_command=by_command)


def start_single(fleet: Fleet, stack: ExitStack) -> tuple[Child, int]:
    """Not waited for; `ready` does that."""
    port = free_port()
    return fleet.start(stack, "single", port), port


def ready(process: Child, port: int) -> Engine:
    """Waits until the instance that was started on `port` answers."""
    url = f"http://{LOOPBACK}:{port}"
    process.wait_for_http(f"{url}/health", START_SECONDS)
    return Engine(url, process)
