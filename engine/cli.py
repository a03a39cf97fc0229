"""The `engine` command. Its options are `EngineSettings`, by the names that vLLM uses."""

import json
import os
from typing import Annotated, Literal

import typer

from pdgate.cluster.opening import CannotOpen
from pdgate.cluster.read_only import CannotAnnounce
from pdgate.engine.kv_flags import KvSecretFile, KvTlsCaFile, KvTlsCertFile, KvTlsKeyFile
from pdgate.engine.settings import NO_PROTOCOL, EngineSettings
from pdgate.protocols.place import Place
from pdgate.transfer.runtime.tls import Tls

LIST_TRANSFERS = "help"
# Read once, when NumPy is imported; so before it is.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def engine(
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder of a Hugging Face Llama model, or pdgate-tiny, the default, or pdgate-tiny-mtp."
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What clients call it; repeatable; * for any name.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    role: Annotated[
        Literal["prefill", "decode", "both", "plain", "encode"],
        typer.Option(help="Its half of a pair; plain: it works alone."),
    ] = "plain",
    pdd_protocol: Annotated[
        str, typer.Option(help="How KV is handed over; plain for not at all.")
    ] = NO_PROTOCOL,
    kv_host: Annotated[
        str, typer.Option(help="Address for peers that hand KV over.")
    ] = "127.0.0.1",
    kv_port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    kv_secret_file: KvSecretFile = "",
    kv_tls_cert_file: KvTlsCertFile = "",
    kv_tls_key_file: KvTlsKeyFile = "",
    kv_tls_ca_file: KvTlsCaFile = "",
    peer: Annotated[str, typer.Option(help="host:port of the other engine (neuron).")] = "",
    pair: Annotated[
        str, typer.Option(help="Name of its pair, where it is listed and meets one engine only.")
    ] = "",
    queue: Annotated[
        str, typer.Option(help="Prefill queue, redis://host:port/0 (decode-first).")
    ] = "",
    max_local_prefill: Annotated[
        int | None,
        typer.Option(help="Prompts of no more uncached tokens are computed here (decode-first)."),
    ] = None,
    max_prefill_queue: Annotated[
        int | None,
        typer.Option(help="And all, while so many wait on the prefill queue (decode-first)."),
    ] = None,
    kv_store: Annotated[
        str,
        typer.Option(
            help="Folder that the engines share (store-mediated).",
            show_default="one in the folder for temporary files",
        ),
    ] = "",
    neuron_layerwise: Annotated[
        bool, typer.Option(help="Send each layer's KV as soon as it is computed (neuron).")
    ] = True,
    neuron_whole_pages: Annotated[
        bool,
        typer.Option(
            "--neuron-whole-pages",
            help="Receive pages whole from a prefill of another --tp, and transpose (neuron).",
        ),
    ] = False,
    read_back: Annotated[
        bool,
        typer.Option(
            "--read-back",
            help="Decode keeps the KV of a turn, and prefill may read it for the next one (vllm-nixl).",
        ),
    ] = False,
    transfer: Annotated[
        str,
        typer.Option(help="KV transfer backend: shm, tcp, ...; help lists all and their options."),
    ] = "tcp",
    transfer_option: Annotated[
        list[str] | None, typer.Option(help="name=value for the transfer backend; repeatable.")
    ] = None,
    tp: Annotated[
        int,
        typer.Option(
            "--tensor-parallel-size", "--tp", help="Shards of the KV cache, a memory each."
        ),
    ] = 1,
    pp: Annotated[
        int,
        typer.Option(
            "--pipeline-parallel-size",
            "--pp",
            help="Stages with some of the layers, a process each.",
        ),
    ] = 1,
    dp: Annotated[
        int,
        typer.Option(
            "--data-parallel-size",
            "--dp",
            help="Engines behind the port, each with a core and a cache (plain, vllm-nixl).",
        ),
    ] = 1,
    block_tokens: Annotated[int, typer.Option(help="Tokens of a KV block.")] = 16,
    blocks: Annotated[int, typer.Option(help="KV blocks that there are.")] = 512,
    max_num_seqs: Annotated[int, typer.Option(help="Most requests in a step.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens in a step.")] = 512,
    speculate: Annotated[
        int,
        typer.Option(
            help="Tokens to guess and verify beside each that is due; 0 for none, 16 at most."
        ),
    ] = 0,
    max_model_len: Annotated[
        int | None,
        typer.Option(help="Longest prompt and answer together; else what the blocks hold."),
    ] = None,
    default_max_tokens: Annotated[
        int, typer.Option(help="Of a chat that names no limit; 0 for all the room there is.")
    ] = 128,
    head_first: Annotated[
        bool,
        typer.Option(
            "--head-first", help="Send the head of a stream before its first token, as vLLM does."
        ),
    ] = False,
    lease_seconds: Annotated[
        float, typer.Option(help="How long prefill keeps KV for its reader.")
    ] = 30.0,
    kv_load_failure: Annotated[
        Literal["fail", "recompute"], typer.Option(help="What decode does when KV does not come.")
    ] = "fail",
    no_prefix_cache: Annotated[
        bool, typer.Option("--no-prefix-cache", help="Compute each prompt from its beginning.")
    ] = False,
    kv_tier: Annotated[
        list[str] | None,
        typer.Option(
            help="host=FOLDER:MIB or disk=FOLDER:MIB: blocks beyond the pages; peer=HOST:PORT:MIB: "
            "those of another host; repeatable."
        ),
    ] = None,
    kv_tier_port: Annotated[
        int | None,
        typer.Option(
            help="Serve them to engines of other hosts there, on --kv-host; 0: a free one."
        ),
    ] = None,
    kv_tier_transfer: Annotated[
        str, typer.Option(help="What moves them between hosts: a name of --transfer help.")
    ] = "tcp",
    prefix_hash_seed: Annotated[
        str, typer.Option(help="In the names of cached blocks, as PYTHONHASHSEED of vLLM.")
    ] = "",
    engine_id: Annotated[
        str, typer.Option(help="What peers know it by; a new one at each start is safer.")
    ] = "",
    min_prefill_ms: Annotated[float, typer.Option(help="Least time to read a prompt.")] = 0.0,
    min_itl_ms: Annotated[float, typer.Option(help="Least time between tokens.")] = 0.0,
    min_read_ms: Annotated[
        float, typer.Option(help="Least time of a step for each prompt token in it.")
    ] = 0.0,
    fail_rate: Annotated[float, typer.Option(help="Share of requests to fail, 0..1.")] = 0.0,
    die_after: Annotated[
        int | None, typer.Option(help="Take in so many requests, then die at the next.")
    ] = None,
    directory: Annotated[
        str, typer.Option(help="Where to be listed: etcd, redis, ...", show_default=False)
    ] = "",
    directory_option: Annotated[
        list[str] | None, typer.Option(help="name=value for the directory; repeatable.")
    ] = None,
    etcd: Annotated[
        str, typer.Option(help="URL of the etcd to be listed in; several between commas.")
    ] = "",
    etcd_user_file: Annotated[
        str, typer.Option(help="File with name:password, where etcd asks for one.")
    ] = "",
    etcd_ca_file: Annotated[
        str, typer.Option(help="Certificates (PEM) that vouch for an etcd at https://.")
    ] = "",
    admin_token_file: Annotated[
        str, typer.Option(help="Serve /admin/role for who knows the token in this file.")
    ] = "",
    control: Annotated[
        bool, typer.Option("--control", help="Serve /pause, /update_weights and the like.")
    ] = False,
    advertise_host: Annotated[
        str, typer.Option(help="What others dial, if --host is a wildcard.")
    ] = "",
    on_host: Annotated[
        str, typer.Option(help="Name of this machine, if not its address.", show_default=False)
    ] = "",
    rack: Annotated[str, typer.Option(help="Where it is, for near pairs.")] = "",
    zone: Annotated[str, typer.Option(help="And where that is.")] = "",
    kv_events_port: Annotated[
        int | None, typer.Option(help="Publish KV events there, on --kv-host; 0 takes a free one.")
    ] = None,
    kv_events_replay_port: Annotated[
        int, typer.Option(help="Repeat missed KV events there; 0 takes a free one.")
    ] = 0,
    shutdown_timeout: Annotated[
        float, typer.Option(help="Seconds that answers under way get at the end.")
    ] = 5.0,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="From here on.")
    ] = "info",
    threads: Annotated[int, typer.Option(help="Of the linear algebra library.")] = 1,
    device: Annotated[
        str,
        typer.Option(
            help="cpu or cuda:N: compute with PyTorch there (extra `torch`).", show_default="NumPy"
        ),
    ] = "",
    check: Annotated[
        bool,
        typer.Option("--check", help="Say what stands against a start by these flags, and end."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="For programs, with --transfer help.")
    ] = False,
) -> None:
    """Serve a Llama model on the CPU, alone or as half of a pair (needs the extra `engine`)."""
    if transfer == LIST_TRANSFERS:
        from pdgate.engine import transfer_options as known

        typer.echo(json.dumps(known.catalogue_json(), indent=2) if as_json else known.catalogue())
        return
    if as_json:
        raise typer.BadParameter("what programs can read is --transfer help", param_hint="--json")
    try:
        settings = EngineSettings(
            model=model,
            served_names=tuple(served_model_name or ()),
            host=host,
            port=port,
            role=role,
            protocol=pdd_protocol,
            kv_host=kv_host,
            kv_port=kv_port,
            kv_secret_file=kv_secret_file,
            kv_tls=Tls(kv_tls_cert_file, kv_tls_key_file, kv_tls_ca_file),
            peer=peer,
            pair=pair,
            queue=queue,
            max_local_prefill=max_local_prefill,
            max_prefill_queue=max_prefill_queue,
            store=kv_store,
            neuron_layer_wise=neuron_layerwise,
            neuron_whole_pages=neuron_whole_pages,
            read_back=read_back,
            transfer=transfer,
            transfer_options=tuple(transfer_option or ()),
            tp=tp,
            pp=pp,
            dp=dp,
            block_tokens=block_tokens,
            blocks=blocks,
            max_seqs=max_num_seqs,
            max_step_tokens=max_num_batched_tokens,
            speculate=speculate,
            max_model_tokens=max_model_len,
            default_max_tokens=default_max_tokens or None,
            head_first=head_first,
            lease_seconds=lease_seconds,
            on_failed_load=kv_load_failure,
            reuse_prefixes=not no_prefix_cache,
            kv_tiers=tuple(kv_tier or ()),
            kv_tier_port=kv_tier_port,
            kv_tier_transfer=kv_tier_transfer,
            hash_seed=prefix_hash_seed,
            engine_id=engine_id,
            min_prefill_ms=min_prefill_ms,
            min_token_ms=min_itl_ms,
            min_read_ms=min_read_ms,
            fail_rate=fail_rate,
            die_after=die_after,
            directory=directory,
            directory_options=tuple(directory_option or ()),
            etcd=etcd,
            etcd_user_file=etcd_user_file,
            etcd_ca_file=etcd_ca_file,
            admin_token_file=admin_token_file,
            control=control,
            advertise_host=advertise_host,
            place=Place(on_host, rack, zone),
            kv_events_port=kv_events_port,
            kv_events_replay_port=kv_events_replay_port,
            goodbye_seconds=shutdown_timeout,
            log_level=log_level,
            threads=threads,
            device=device,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if check:
        from pdgate.engine import starting

        try:
            starting.check(settings)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise typer.BadParameter(str(error)) from error
        return
    os.environ |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    # Imports NumPy, which reads those variables.
    from pdgate.engine.ranks.crew import RankLost
    from pdgate.engine.server import run

    try:
        run(settings)
    except RankLost as error:
        typer.echo(f"pdgate engine: the engine has ended: {error}", err=True)
        raise typer.Exit(1) from error
    except (CannotOpen, CannotAnnounce) as error:
        typer.echo(f"pdgate engine: the engine cannot be listed: {error}", err=True)
        raise typer.Exit(2) from None
    except (OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError) as error:
        typer.echo(f"pdgate engine: the engine could not start: {error}", err=True)
        raise typer.Exit(1) from error


def main() -> None:
    typer.run(engine)


if __name__ == "__main__":
    main()
