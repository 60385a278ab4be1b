"""The neutral predictions of unknown.py as nodes of an ONNX graph, around the node of the trees.

    graph = Graph()
    asked = before(graph, known)              # the rows, and below them the variants of each row with an unknown value
    …                                         # trees and link, from `asked` to `predicted`
    answer = after(graph, predicted, num_classes)

Where no row has an unknown value, the rows are asked as they are, and the predictions returned as they are. It needs the
package onnx.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from ensemble.trees.unknown import NUM_REFERENCE, Known

MIDDLE, LAST = NUM_REFERENCE // 2, NUM_REFERENCE - 1
FEATURES, UNKNOWN, HAS_UNKNOWN, ANY_UNKNOWN, NUM_ROWS = "features", "unknown", "has_unknown", "any_unknown", "num_rows"
"""Names in the graph: (n, F) float, (n, F) bool, (n,) float, () bool, (1,)."""


class Graph:
    """Nodes of one output each, and constants; both are added in order. The branches of an `If` see all that is outside."""

    def __init__(self, outside: "Graph | None" = None) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = outside.constants if outside else []
        self.numbers: itertools.count[int] = outside.numbers if outside else itertools.count()

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        output = name or f"{operator.lower()}_{next(self.numbers)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, values: Any, kind: Any = np.int64) -> str:
        self.constants.append(numpy_helper.from_array(np.array(values, kind), f"constant_{len(self.constants)}"))
        return self.constants[-1].name

    def if_any_unknown(self, build: Callable[["Graph"], str], otherwise: str) -> str:
        """Add an `If`: what `build` adds, or else the float array `otherwise`."""

        def branch(build: Callable[[Graph], str]) -> GraphProto:
            inside = Graph(self)
            result = helper.make_tensor_value_info(build(inside), TensorProto.FLOAT, None)
            return helper.make_graph(inside.nodes, f"branch_{next(self.numbers)}", [], [result])

        branches = {"then_branch": branch(build), "else_branch": branch(lambda graph: graph.add("Identity", otherwise))}
        return self.add("If", ANY_UNKNOWN, **branches)


def before(graph: Graph, known: Known) -> str:
    """The rows of `features`, (n, F), and for each of the m rows with an unknown value its variants: (n + m * 63, F)."""
    missing = graph.add("IsNaN", FEATURES)
    unknown = graph.add("And", missing, graph.constant(known.complete[None], bool))
    for number, codes in known.unseen.items():
        column = graph.add("Gather", FEATURES, graph.constant([number]), axis=1)
        is_code = graph.add(
            "Cast", graph.add("Equal", column, graph.constant(codes[None], np.float32)), to=TensorProto.FLOAT
        )
        is_unseen = graph.add("Cast", graph.add("ReduceMax", is_code, axes=[1], keepdims=1), to=TensorProto.BOOL)
        is_column = graph.constant(np.arange(len(known.complete))[None] == number, bool)
        unknown = graph.add("Or", unknown, graph.add("And", is_unseen, is_column))
    graph.add("Identity", unknown, name=UNKNOWN)
    graph.add("ReduceMax", graph.add("Cast", UNKNOWN, to=TensorProto.FLOAT), name=HAS_UNKNOWN, axes=[1], keepdims=0)
    graph.add("Cast", graph.add("ReduceSum", HAS_UNKNOWN, keepdims=0), name=ANY_UNKNOWN, to=TensorProto.BOOL)
    graph.add("Shape", FEATURES, name=NUM_ROWS, end=1)
    return graph.if_any_unknown(lambda inside: _with_variants(inside, known), FEATURES)


def _with_variants(graph: Graph, known: Known) -> str:
    rows, middle = _rows(graph), graph.constant([1])
    filled = graph.add(
        "Where",
        graph.add("Unsqueeze", graph.add("Gather", UNKNOWN, rows, axis=0), middle),
        graph.constant(known.reference[None], np.float32),
        graph.add("Unsqueeze", graph.add("Gather", FEATURES, rows, axis=0), middle),
    )
    variants = graph.add("Reshape", filled, graph.constant([-1, len(known.complete)]))
    return graph.add("Concat", FEATURES, variants, axis=0)


def _rows(graph: Graph) -> str:
    """(m,): the numbers of the rows with an unknown value."""
    return graph.add("Squeeze", graph.add("NonZero", HAS_UNKNOWN), graph.constant([0]))


def after(graph: Graph, predicted: str, num_classes: int) -> str:
    """(n, K): the predictions of `predicted`, (n + m * 63, K), in those of m rows that of the variants."""
    return graph.if_any_unknown(lambda inside: _joined(inside, predicted, num_classes), predicted)


def _joined(graph: Graph, predicted: str, num_classes: int) -> str:
    first, end = graph.constant([0]), graph.constant([np.iinfo(np.int64).max])
    plain = graph.add("Slice", predicted, first, NUM_ROWS, first)
    of_variants = graph.add("Slice", predicted, NUM_ROWS, end, first)
    variants = graph.add("Reshape", of_variants, graph.constant([-1, NUM_REFERENCE, num_classes]))
    ordered = _sorted(graph, variants)
    median = _at(graph, ordered, MIDDLE)
    answer = median if num_classes == 1 else _between_quartiles(graph, variants, ordered, median)
    return graph.add("ScatterND", plain, graph.add("Unsqueeze", _rows(graph), graph.constant([1])), answer)


def _sorted(graph: Graph, variants: str) -> str:
    """(m, 63, K), each prediction in rising order."""
    number = next(graph.numbers)
    values, places = f"values_{number}", f"places_{number}"
    node = helper.make_node(
        "TopK", [variants, graph.constant([NUM_REFERENCE])], [values, places], axis=1, largest=0, sorted=1
    )
    graph.nodes.append(node)
    return values


def _at(graph: Graph, ordered: str, place: int) -> str:
    """(m, K): what stands at a place."""
    return graph.add("Gather", ordered, graph.constant(place), axis=1)


def _quantile(graph: Graph, ordered: str, share: float) -> str:
    """(m, K), between two places in proportion, as numpy.quantile does."""
    place = share * LAST
    low, part = int(place), graph.constant(place % 1, np.float32)
    below, above = _at(graph, ordered, low), _at(graph, ordered, min(low + 1, LAST))
    return graph.add("Add", below, graph.add("Mul", part, graph.add("Sub", above, below)))


def _between_quartiles(graph: Graph, variants: str, ordered: str, median: str) -> str:
    """As in unknown.py: the medians, moved towards the quartiles until their sum is 1; where that cannot be, the mean."""
    zero, one, last = graph.constant(0, np.float32), graph.constant(1, np.float32), graph.constant([-1])
    lacking = graph.add("Sub", one, graph.add("ReduceSum", median, last, keepdims=1))
    room = graph.add(
        "Where",
        graph.add("Greater", lacking, zero),
        graph.add("Sub", _quantile(graph, ordered, 0.75), median),
        graph.add("Sub", median, _quantile(graph, ordered, 0.25)),
    )
    all_room = graph.add("ReduceSum", room, last, keepdims=1)
    share = graph.add("Div", room, graph.add("Where", graph.add("Greater", all_room, zero), all_room, one))
    moved = graph.add("Add", median, graph.add("Mul", lacking, share))
    is_enough = graph.add("LessOrEqual", graph.add("Abs", lacking), all_room)
    found = graph.add("Where", is_enough, moved, graph.add("ReduceMean", variants, axes=[1], keepdims=0))
    return graph.add("Div", found, graph.add("ReduceSum", found, last, keepdims=1))
