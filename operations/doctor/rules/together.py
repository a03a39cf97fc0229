"""Findings about engines that are to work together."""

from collections.abc import Callable, Iterator

from pdgate.operations.doctor.checks import (
    BLOCK_SIZE_DIFFERS,
    CHAT_TEMPLATE_DIFFERS,
    ENCODERS_APART,
    HASH_SEED_DIFFERS,
    KV_DTYPE_DIFFERS,
    LEASE_DIFFERS,
    MAX_MODEL_LEN_DIFFERS,
    MODEL_PATHS_DIFFER,
    MODELS_DIFFER,
    NO_PAIR,
    ROLES_CROSSED,
    TOKENS_DIFFER,
    TP_DIFFERS,
    VERSIONS_DIFFER,
    DoctorCheck,
    Finding,
)
from pdgate.operations.doctor.seen import Examined, SeenEngine
from pdgate.protocols.dialects import nixl
from pdgate.protocols.instance import Role

OTHER = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}
NIXL = "vllm-nixl"

Tells = Callable[[SeenEngine], object]
"""Something of an engine; None or empty if it does not tell."""


def findings(examined: Examined) -> Iterator[Finding]:
    yield from _alone(examined)
    yield from _one_sided_models(examined)
    yield from _differences(examined)
    yield from _crossed(examined)
    yield from _leases(examined)
    yield from _encoders(examined)


def _alone(examined: Examined) -> Iterator[Finding]:
    """An engine that is down still counts: another finding says that it is."""
    for seen in examined.fleet:
        here = seen.instance
        for role, other in OTHER.items():
            if here.role is role and not any(
                one.instance.role.serves(other) and one.instance.speaks == here.speaks
                for one in examined.fleet
            ):
                yield Finding(NO_PAIR, (seen.id,), f"no {other} engine speaks {here.speaks}")


def _one_sided_models(examined: Examined) -> Iterator[Finding]:
    for role, other in OTHER.items():
        for seen in examined.of(role):
            if seen.instance.role is not role:
                continue
            others = [
                one for one in examined.of(other) if one.instance.speaks == seen.instance.speaks
            ]
            missing = seen.models - {model for one in others for model in one.models}
            if others and missing:
                found = f"no {other} engine serves {', '.join(sorted(missing))}"
                yield Finding(MODELS_DIFFER, (seen.id,), found)


def _differences(examined: Examined) -> Iterator[Finding]:
    for prefill, decode in examined.pairs():
        for check, tells in _TOLD.items():
            one, other = tells(prefill), tells(decode)
            if one and other and one != other:
                found = f"{one} on {prefill.id}, {other} on {decode.id}"
                yield Finding(check, (prefill.id, decode.id), found)
        yield from _cards(prefill, decode)
        yield from _tokens(prefill, decode)
        hashes = examined.probes.hashes
        one, other = hashes.get(prefill.id), hashes.get(decode.id)
        if one and other and one[0] != other[0]:
            found = f"the first block of one text is {one[0]} on {prefill.id}, {other[0]} on {decode.id}"
            yield Finding(HASH_SEED_DIFFERS, (prefill.id, decode.id), found)


def _version(seen: SeenEngine) -> str:
    return f"{seen.kind} {seen.version}" if seen.kind and seen.version else ""


_TOLD: dict[DoctorCheck, Tells] = {
    BLOCK_SIZE_DIFFERS: lambda seen: seen.block_tokens,
    TP_DIFFERS: lambda seen: seen.tp,
    # "auto" is the type of the weights, which engines of one model have in common.
    KV_DTYPE_DIFFERS: lambda seen: seen.kv_dtype,
    VERSIONS_DIFFER: _version,
}


def _cards(prefill: SeenEngine, decode: SeenEngine) -> Iterator[Finding]:
    both = (prefill.id, decode.id)
    for model in sorted(prefill.models & decode.models):
        one, other = prefill.cards[model], decode.cards[model]
        if one.root and other.root and one.root != other.root:
            found = f"{model} is {one.root} on {prefill.id}, {other.root} on {decode.id}"
            yield Finding(MODEL_PATHS_DIFFER, both, found)
        if one.max_tokens and other.max_tokens and one.max_tokens != other.max_tokens:
            found = f"{model}: {one.max_tokens} on {prefill.id}, {other.max_tokens} on {decode.id}"
            yield Finding(MAX_MODEL_LEN_DIFFERS, both, found)


def _tokens(prefill: SeenEngine, decode: SeenEngine) -> Iterator[Finding]:
    both = (prefill.id, decode.id)
    if prefill.models != decode.models:
        # They were asked in the name of their first model.
        return
    for check, one, other in (
        (TOKENS_DIFFER, prefill.text_tokens, decode.text_tokens),
        (CHAT_TEMPLATE_DIFFERS, prefill.chat_tokens, decode.chat_tokens),
    ):
        if one is not None and other is not None and one != other:
            found = f"{len(one)} tokens on {prefill.id}, {len(other)} on {decode.id}, not the same"
            yield Finding(check, both, found)
            return


def _crossed(examined: Examined) -> Iterator[Finding]:
    for seen in examined.well:
        started = seen.connector.role
        if started is not None and not _fits(seen.instance.role, started):
            found = f"{seen.id} is to serve {seen.instance.role}, and was started for {started}"
            yield Finding(ROLES_CROSSED, (seen.id,), found)
    kept, turned = examined.probes.kept, examined.probes.turned
    for prefill, decode in examined.pairs():
        mine, theirs = kept.get(prefill.id), turned.get(decode.id)
        if mine and theirs and not mine.params and theirs.params:
            found = (
                f"{decode.id} keeps KV as prefill engines do, and {prefill.id} does not"
                f" ({mine.trouble or 'no kv_transfer_params'})"
            )
            yield Finding(ROLES_CROSSED, (prefill.id, decode.id), found)


def _fits(role: Role, started: Role) -> bool:
    return started is Role.BOTH or role is Role.BOTH or role is started or role is Role.PLAIN


def _leases(examined: Examined) -> Iterator[Finding]:
    believed = examined.lease_seconds or nixl.LEASE_SECONDS
    for seen in examined.of(Role.PREFILL):
        told = seen.connector.lease_seconds
        if seen.instance.protocol == NIXL and told is not None and told < believed:
            found = f"{seen.id} keeps KV for {told:g} s, the gateway believes {believed:g} s"
            yield Finding(LEASE_DIFFERS, (seen.id,), found)


def _encoders(examined: Examined) -> Iterator[Finding]:
    if not any(seen.instance.role is Role.ENCODE for seen in examined.fleet):
        return
    for seen in examined.well:
        role, has = seen.instance.role, seen.connector.embeddings
        # An engine that shows no configuration shows none of this either.
        if role is Role.DECODE or not (has or seen.connector.name):
            continue
        wanted = "ec_producer" if role is Role.ENCODE else "ec_consumer"
        if has not in (wanted, "ec_both"):
            found = f"{seen.id} is to serve {role}, and has ec_role {has or 'none'}"
            yield Finding(ENCODERS_APART, (seen.id,), found)
