"""The neutral predictions of unknown.py as nodes of an ONNX graph, before and after the node of the trees.

    graph = Graph()
    inputs = before(graph, seen)              # the rows, followed by the variants of each row with an unknown value
    …                                         # trees and link function, from `inputs` to `predicted`
    prediction = after(graph, predicted, num_classes)

If no row has an unknown value, rows and predictions pass unchanged. This module needs the package onnx.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from ensemble.trees.unknown import NUM_REFERENCE, SUM_TOLERANCE, SeenValues

MIDDLE, LAST = NUM_REFERENCE // 2, NUM_REFERENCE - 1
FEATURES, UNKNOWN, HAS_UNKNOWN, ANY_UNKNOWN, NUM_ROWS = "features", "unknown", "has_unknown", "any_unknown", "num_rows"
"""Names in the graph: (n, F) float, (n, F) bool, (n,) float, () bool, (1,)."""


class Graph:
    """Nodes and constants, in the order of addition. The graph of a branch of an `If` adds its constants to `outer`."""

    def __init__(self, outer: "Graph | None" = None) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = outer.constants if outer else []
        self.numbers: itertools.count[int] = outer.numbers if outer else itertools.count()

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the name of the output."""
        output = name or f"{operator.lower()}_{next(self.numbers)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, values: Any, kind: Any = np.int64) -> str:
        self.constants.append(numpy_helper.from_array(np.array(values, kind), f"constant_{len(self.constants)}"))
        return self.constants[-1].name

    def if_any_unknown(self, build: Callable[["Graph"], str], otherwise: str) -> str:
        """Add an `If`: if a row has an unknown value, the nodes that `build` adds, else the float array `otherwise`."""

        def branch(build: Callable[[Graph], str]) -> GraphProto:
            inner = Graph(self)
            result = helper.make_tensor_value_info(build(inner), TensorProto.FLOAT, None)
            return helper.make_graph(inner.nodes, f"branch_{next(self.numbers)}", [], [result])

        branches = {"then_branch": branch(build), "else_branch": branch(lambda graph: graph.add("Identity", otherwise))}
        return self.add("If", ANY_UNKNOWN, **branches)


def before(graph: Graph, seen: SeenValues) -> str:
    """The rows of `features`, (n, F), and for each of the m rows with an unknown value its variants: (n + m * 63, F)."""
    missing = graph.add("IsNaN", FEATURES)
    unknown = graph.add("And", missing, graph.constant(seen.complete[None], bool))
    for number, codes in seen.unseen.items():
        column = graph.add("Gather", FEATURES, graph.constant([number]), axis=1)
        is_code = graph.add(
            "Cast", graph.add("Equal", column, graph.constant(codes[None], np.float32)), to=TensorProto.FLOAT
        )
        is_unseen = graph.add("Cast", graph.add("ReduceMax", is_code, axes=[1], keepdims=1), to=TensorProto.BOOL)
        is_column = graph.constant(np.arange(len(seen.complete))[None] == number, bool)
        unknown = graph.add("Or", unknown, graph.add("And", is_unseen, is_column))
    graph.add("Identity", unknown, name=UNKNOWN)
    graph.add("ReduceMax", graph.add("Cast", UNKNOWN, to=TensorProto.FLOAT), name=HAS_UNKNOWN, axes=[1], keepdims=0)
    graph.add("Cast", graph.add("ReduceSum", HAS_UNKNOWN, keepdims=0), name=ANY_UNKNOWN, to=TensorProto.BOOL)
    graph.add("Shape", FEATURES, name=NUM_ROWS, end=1)
    return graph.if_any_unknown(lambda inner: _with_variants(inner, seen), FEATURES)


def _with_variants(graph: Graph, seen: SeenValues) -> str:
    rows, axis = _rows(graph), graph.constant([1])
    filled = graph.add(
        "Where",
        graph.add("Unsqueeze", graph.add("Gather", UNKNOWN, rows, axis=0), axis),
        graph.constant(seen.reference[None], np.float32),
        graph.add("Unsqueeze", graph.add("Gather", FEATURES, rows, axis=0), axis),
    )
    variants = graph.add("Reshape", filled, graph.constant([-1, len(seen.complete)]))
    return graph.add("Concat", FEATURES, variants, axis=0)


def _rows(graph: Graph) -> str:
    """(m,): the numbers of the rows with an unknown value."""
    return graph.add("Squeeze", graph.add("NonZero", HAS_UNKNOWN), graph.constant([0]))


def after(graph: Graph, predicted: str, num_classes: int) -> str:
    """(n, K): the predictions of the rows, neutral ones for m of them, from those in `predicted`, (n + m * 63, K)."""
    return graph.if_any_unknown(lambda inner: _joined(inner, predicted, num_classes), predicted)


def _joined(graph: Graph, predicted: str, num_classes: int) -> str:
    first, end = graph.constant([0]), graph.constant([np.iinfo(np.int64).max])
    plain = graph.add("Slice", predicted, first, NUM_ROWS, first)
    of_variants = graph.add("Slice", predicted, NUM_ROWS, end, first)
    variants = graph.add("Reshape", of_variants, graph.constant([-1, NUM_REFERENCE, num_classes]))
    ordered = _sorted(graph, variants)
    median = _at(graph, ordered, MIDDLE)
    neutral = median if num_classes == 1 else _between_quartiles(graph, variants, ordered, median)
    return graph.add("ScatterND", plain, graph.add("Unsqueeze", _rows(graph), graph.constant([1])), neutral)


def _sorted(graph: Graph, variants: str) -> str:
    """(m, 63, K), sorted along the second axis."""
    number = next(graph.numbers)
    values, indices = f"values_{number}", f"indices_{number}"
    node = helper.make_node(
        "TopK", [variants, graph.constant([NUM_REFERENCE])], [values, indices], axis=1, largest=0, sorted=1
    )
    graph.nodes.append(node)
    return values


def _at(graph: Graph, ordered: str, index: int) -> str:
    """(m, K): the values at an index of the second axis."""
    return graph.add("Gather", ordered, graph.constant(index), axis=1)


def _quantile(graph: Graph, ordered: str, share: float) -> str:
    """(m, K), interpolated as by numpy.quantile."""
    index = share * LAST
    low, fraction = int(index), graph.constant(index % 1, np.float32)
    below, above = _at(graph, ordered, low), _at(graph, ordered, min(low + 1, LAST))
    return graph.add("Add", below, graph.add("Mul", fraction, graph.add("Sub", above, below)))


def _between_quartiles(graph: Graph, variants: str, ordered: str, median: str) -> str:
    """`between_quartiles` of unknown.py: medians moved towards the quartiles until their sum is 1, or the mean."""
    zero, one, classes = graph.constant(0, np.float32), graph.constant(1, np.float32), graph.constant([-1])
    lacking = graph.add("Sub", one, graph.add("ReduceSum", median, classes, keepdims=1))
    room = graph.add(
        "Where",
        graph.add("Greater", lacking, zero),
        graph.add("Sub", _quantile(graph, ordered, 0.75), median),
        graph.add("Sub", median, _quantile(graph, ordered, 0.25)),
    )
    total_room = graph.add("ReduceSum", room, classes, keepdims=1)
    share = graph.add("Div", room, graph.add("Where", graph.add("Greater", total_room, zero), total_room, one))
    moved = graph.add("Add", median, graph.add("Mul", lacking, share))
    allowed = graph.add("Add", total_room, graph.constant(SUM_TOLERANCE, np.float32))
    is_enough = graph.add("LessOrEqual", graph.add("Abs", lacking), allowed)
    result = graph.add("Where", is_enough, moved, graph.add("ReduceMean", variants, axes=[1], keepdims=0))
    return graph.add("Div", result, graph.add("ReduceSum", result, classes, keepdims=1))
