"""Reading of an ONNX file's metadata and of the digest of everything else, without the onnx package.

An ONNX file is one protobuf message, ModelProto, of which the graph (field 7) and the metadata (field 14, repeated
key-value pairs) matter here: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from deploy.errors import ContractError

CONTRACT_KEY = "robolearn.contract"
CONTRACT_SHA256_KEY = "robolearn.contract_sha256"

_GRAPH = 7
_METADATA = 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class OnnxContent:
    """The metadata, and the SHA-256 (hex) of all top-level fields that are not metadata, in the order of the file."""

    metadata: dict[str, str]
    graph_sha256: str


def read_content(data: bytes) -> OnnxContent:
    """Return what an ONNX file holds besides its graph.

    Raises:
        ContractError: bytes that are no complete ONNX model.
    """
    metadata: dict[str, str] = {}
    digest = hashlib.sha256()
    has_graph = False
    for field, start, value, end in _fields(data):
        if field == _METADATA:
            pair = {number: data[a:b] for number, _, a, b in _fields(data, value, end)}
            metadata[_text(pair.get(1, b""))] = _text(pair.get(2, b""))
        else:
            digest.update(data[start:end])
            has_graph = has_graph or field == _GRAPH
    if not has_graph:
        raise ContractError("not a complete ONNX model: it holds no graph")
    return OnnxContent(metadata, digest.hexdigest())


def _fields(data: bytes, position: int = 0, stop: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, start of the tag, start of the value and end of each field of a protobuf message."""
    stop = len(data) if stop is None else stop
    while position < stop:
        start = position
        tag, position = _varint(data, position)
        value = position
        if tag & 7 == _VARINT:
            _, end = _varint(data, position)
        elif tag & 7 == _BYTES:
            length, value = _varint(data, position)
            end = value + length
        elif tag & 7 in (_FIXED32, _FIXED64):
            end = position + (4 if tag & 7 == _FIXED32 else 8)
        else:
            raise ContractError("not an ONNX model, or a damaged one")
        if end > stop or tag >> 3 == 0:
            raise ContractError("not an ONNX model, or a truncated one")
        yield tag >> 3, start, value, end
        position = end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for place in range(10):
        if position >= len(data):
            raise ContractError("not an ONNX model, or a truncated one")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, position
    raise ContractError("not an ONNX model, or a damaged one")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ContractError("not an ONNX model, or one with damaged metadata") from None
