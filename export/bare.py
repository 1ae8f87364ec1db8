"""An ONNX model without what only debugging needs."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def strip(model: onnx.ModelProto) -> None:
    """Remove metadata, comments and stack traces, which hold paths of the machine that wrote it."""
    parts = (model, *model.functions, *(n for f in model.functions for n in f.node))
    for item in (*parts, *_inside(model.graph)):
        item.ClearField("doc_string")
        item.ClearField("metadata_props")


def _inside(
    graph: onnx.GraphProto,
) -> Iterator[onnx.GraphProto | onnx.NodeProto | onnx.TensorProto | onnx.ValueInfoProto]:
    """A graph with its parts, and the graphs inside its nodes."""
    yield graph
    yield from (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g,) if attribute.HasField("g") else attribute.graphs:
                yield from _inside(inner)
