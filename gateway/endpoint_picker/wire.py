"""Envoy's external processing messages, as far as a picker reads and writes them.

Declared here and not by a package of protos, as those lay files over other packages' (googleapis, OpenTelemetry's). The
numbers are the wire; names of packages are not on it, so all messages are one file, in a pool of its own. Fields that are
not declared are kept as they came. Enums are their numbers.

Source: envoyproxy/data-plane-api 84e8436, envoy/service/ext_proc/v3/external_processor.proto, envoy/config/core/v3/base.proto,
envoy/type/v3/http_status.proto; grpc/grpc, src/proto/grpc/health/v1/health.proto.
"""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"

NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX, GRPC = range(6)
"""How bodies are sent: ProcessingMode.BodySendMode."""
OVERWRITE: Final = 2
"""HeaderValueOption.HeaderAppendAction: overwrite if it exists, or add."""
SERVICE_UNKNOWN, SERVING, NOT_SERVING = 3, 1, 2
"""HealthCheckResponse.ServingStatus."""

# A star is for many, braces for a map from text.
_DECLARED: Final = """
HeaderValue             key=1:text value=2:text raw_value=3:bytes
HeaderValueOption       header=1:HeaderValue append_action=3:enum
HeaderMap               headers=1:HeaderValue*
HeaderMutation          set_headers=1:HeaderValueOption* remove_headers=2:text*
Metadata                filter_metadata=1:{Struct}
ProtocolConfiguration   request_body_mode=1:enum response_body_mode=2:enum
HttpHeaders             headers=1:HeaderMap end_of_stream=3:flag
HttpBody                body=1:bytes end_of_stream=2:flag
HttpTrailers            trailers=1:HeaderMap
ProcessingRequest       request_headers=2:HttpHeaders response_headers=3:HttpHeaders request_body=4:HttpBody \
response_body=5:HttpBody request_trailers=6:HttpTrailers response_trailers=7:HttpTrailers metadata_context=8:Metadata \
observability_mode=10:flag protocol_config=11:ProtocolConfiguration
StreamedBodyResponse    body=1:bytes end_of_stream=2:flag
BodyMutation            body=1:bytes streamed_response=3:StreamedBodyResponse
CommonResponse          header_mutation=2:HeaderMutation body_mutation=3:BodyMutation clear_route_cache=5:flag
HeadersResponse         response=1:CommonResponse
BodyResponse            response=1:CommonResponse
TrailersResponse        header_mutation=1:HeaderMutation
HttpStatus              code=1:enum
ImmediateResponse       status=1:HttpStatus headers=2:HeaderMutation body=3:bytes details=5:text
ProcessingResponse      request_headers=1:HeadersResponse response_headers=2:HeadersResponse request_body=3:BodyResponse \
response_body=4:BodyResponse request_trailers=5:TrailersResponse response_trailers=6:TrailersResponse \
immediate_response=7:ImmediateResponse dynamic_metadata=8:Struct
HealthCheckRequest      service=1:text
HealthCheckResponse     status=1:enum
"""

_PACKAGE: Final = "pdgate.ext_proc"
_FILE: Final = "pdgate/ext_proc.proto"
_STRUCT: Final = ".google.protobuf.Struct"
_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "text": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "flag": _Field.TYPE_BOOL,
    "enum": _Field.TYPE_INT32,
}


def _classes() -> dict[str, Any]:
    """Name -> class of each message that is declared."""
    file = descriptor_pb2.FileDescriptorProto(
        name=_FILE, package=_PACKAGE, syntax="proto3", dependency=["google/protobuf/struct.proto"]
    )
    for line in _DECLARED.strip().splitlines():
        name, *fields = line.split()
        message = file.message_type.add(name=name)
        for field in fields:
            _declare(message, *field.replace("=", ":").split(":"))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return {
        one.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{one.name}")
        )
        for one in file.message_type
    }


def _declare(message: descriptor_pb2.DescriptorProto, name: str, number: str, kind: str) -> None:
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind.startswith("{"):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
        _declare(entry, "value", "2", kind.strip("{}"))
        field.label = _Field.LABEL_REPEATED
        field.type, field.type_name = (
            _Field.TYPE_MESSAGE,
            f".{_PACKAGE}.{message.name}.{entry.name}",
        )
        return
    if kind.endswith("*"):
        kind, field.label = kind[:-1], _Field.LABEL_REPEATED
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = _STRUCT if kind == "Struct" else f".{_PACKAGE}.{kind}"


_MADE: Final = _classes()

Message = Any
"""One of these: made at run time, so no type checker knows its fields."""

ProcessingRequest: Final = _MADE["ProcessingRequest"]
ProcessingResponse: Final = _MADE["ProcessingResponse"]
HealthCheckRequest: Final = _MADE["HealthCheckRequest"]
HealthCheckResponse: Final = _MADE["HealthCheckResponse"]
HeaderMutation: Final = _MADE["HeaderMutation"]


def headers_of(head: Message) -> list[tuple[bytes, bytes]]:
    """Headers of HttpHeaders: names in lower case, pseudo-headers (`:path`) included."""
    return [
        (one.key.lower().encode("latin-1", "replace"), one.raw_value or one.value.encode())
        for one in head.headers.headers
    ]


def mutation(given: Mapping[str, str | bytes], removed: tuple[str, ...] = ()) -> Message:
    """HeaderMutation that leaves each header of these with one value, or none."""
    made = HeaderMutation(remove_headers=removed)
    for name, value in given.items():
        one = made.set_headers.add(append_action=OVERWRITE)
        one.header.key = name
        one.header.raw_value = value if isinstance(value, bytes) else value.encode()
    return made


def texts(metadata: Message, namespace: str, name: str) -> list[str] | None:
    """Texts under that name of the metadata, between commas or as a list; None where nothing is said."""
    if namespace not in metadata.filter_metadata:
        return None
    said = metadata.filter_metadata[namespace].fields
    if name not in said:
        return None
    kind = said[name].WhichOneof("kind")
    if kind == "string_value":
        found = [said[name].string_value]
    elif kind == "list_value":
        found = [one.string_value for one in said[name].list_value.values]
    else:
        found = []
    return [part.strip() for text in found for part in text.split(",") if part.strip()]
