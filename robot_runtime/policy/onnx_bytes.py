"""The outermost layer of an ONNX file: metadata in and out, without the onnx package.

An ONNX file is one protobuf message, ``ModelProto`` of onnx.proto, and a protobuf message is a row
of fields, each a tag (number * 8 + wire type) and a value. Walking the outermost row is enough to
tell metadata from everything else, and to notice a file that was cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from robot_runtime.errors import BadInput

# Field numbers of ModelProto, and of StringStringEntryProto behind metadata_props.
_IR_VERSION, _GRAPH, _METADATA = 1, 7, 14
_KEY, _VALUE = 1, 2
MAX_FIELDS = 2**18
"""Most fields in one message: a file of a gigabyte of empty ones would take minutes."""

# Wire types of protobuf: how long a value is.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, kw_only=True, slots=True)
class OnnxParts:
    """An ONNX file taken apart.

    Attributes:
        model: The file without its metadata: still a complete ONNX model.
        metadata: What was in the metadata, by key.
    """

    model: bytes
    metadata: dict[str, bytes]


def split(data: bytes) -> OnnxParts:
    """Take an ONNX file apart.

    Args:
        data: The file.

    Raises:
        BadInput: Cut off, not an ONNX model, or a metadata key that stands there twice.
    """
    model = bytearray()
    metadata: dict[str, bytes] = {}
    seen: list[int] = []
    for number, wire, start, content, stop in fields(data):
        if number == _METADATA and wire == _BYTES:
            key, value = _entry(data[content:stop])
            if key in metadata:
                raise BadInput(f"metadata key {key!r} stands there twice")
            metadata[key] = value
        else:
            model += data[start:stop]
            seen.append(number)
    if _IR_VERSION not in seen or _GRAPH not in seen:
        raise BadInput("not an ONNX model: no version or no graph at its outermost level")
    if seen.count(_GRAPH) > 1:
        raise BadInput("not a plain ONNX model: it has two graphs")
    return OnnxParts(model=bytes(model), metadata=metadata)


def join(model: bytes, metadata: Mapping[str, bytes]) -> bytes:
    """Append metadata to an ONNX model that has none; `split` gives both back.

    Args:
        model: A model without metadata.
        metadata: UTF-8 text by key, in the order it shall stand in the file.
    """
    parts = [model]
    for key, value in metadata.items():
        entry = _length_delimited(_KEY, key.encode()) + _length_delimited(_VALUE, value)
        parts.append(_length_delimited(_METADATA, entry))
    return b"".join(parts)


def fields(data: bytes | memoryview) -> list[tuple[int, int, int, int, int]]:
    """Number, wire type, start of tag, start of content and end of each field of a message.

    Raises:
        BadInput: Not a row of fields, cut off, or of more fields than any model has.
    """
    found: list[tuple[int, int, int, int, int]] = []
    position = 0
    while position < len(data):
        start = position
        tag, position = varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == _BYTES:
            length, position = varint(data, position)
            stop = position + length
        elif wire == _VARINT:
            _, stop = varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            stop = position + (8 if wire == _FIXED64 else 4)
        else:
            raise BadInput(f"not an ONNX file: byte {start} is no protobuf field")
        if number == 0:
            raise BadInput(f"not an ONNX file: byte {start} is no protobuf field")
        if stop > len(data):
            raise BadInput(f"cut off: {len(data)} bytes long, a part of it ends at byte {stop}")
        found.append((number, wire, start, position, stop))
        if len(found) > MAX_FIELDS:
            raise BadInput(f"not an ONNX file: more than {MAX_FIELDS} fields in one message")
        position = stop
    return found


def _entry(data: bytes) -> tuple[str, bytes]:
    """Key and value of one metadata entry: exactly these two, so that nothing hides beside them."""
    parts = [(number, data[content:stop]) for number, _, _, content, stop in fields(data)]
    if [number for number, _ in parts] not in ([_KEY, _VALUE], [_KEY]):
        raise BadInput("a metadata entry is not one key and one value")
    try:
        return parts[0][1].decode(), parts[1][1] if len(parts) > 1 else b""
    except UnicodeDecodeError:
        raise BadInput("a metadata key is not UTF-8") from None


def varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read a base-128 number, low digits first.

    Returns:
        The number, and where it ends.

    Raises:
        BadInput: Cut off, or longer than 64 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise BadInput(f"cut off: it ends at byte {len(data)} within a number")
        digit = data[position]
        position += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, position
    raise BadInput(f"not an ONNX file: the number at byte {position - 10} does not end")


def _length_delimited(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)
