"""Export of a tree member to one ONNX file, for ONNX Runtime in any language: pip install 'accelerate-ensemble[export]'.

    input     features     (n, F) float32; NaN for a missing value, for a category its number
    output    prediction   (n,) float32, (n, K) for K classes, or (n,) float64 for a value: as scripts/predict.py writes it

Unknown values, such as a category without a training row, get the neutral prediction of scripts/predict.py (unknown.py,
neutral.py). The metadata of the file list the features that can have them under `neutral`.

The trees are read from the libraries' own dumps. LightGBM compares in float64, so its thresholds are rounded down to
float32; the usual converter rounds to the nearest, and so changes predictions for values at a threshold. LightGBM also
treats values within 1e-35 of 0 as 0, and missing values as 0 if the feature had none in training. So before the file is
written, its predictions are compared with the member's on such values.
"""

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.data import inputs
from ensemble.errors import Failure, UserError
from ensemble.folders import MARK, new_file, refuse_foreign_file
from ensemble.trees import target_encoding, unknown
from ensemble.trees.predict import library_module
from ensemble.trees.rows import TreeData, tree_manifest
from ensemble.trees.scaling import Scaling

try:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    from ensemble.trees.neutral import FEATURES, Graph, after, before
except ModuleNotFoundError as error:
    raise UserError(f"the package {error.name} is not installed: pip install 'accelerate-ensemble[export]'") from None

OPSET, OPSET_ML, IR_VERSION = 17, 3, 8
"""Versions of 2022, which old runtimes can read."""
TOLERANCE = 1e-5
"""The largest allowed difference between file and member, relative to the largest absolute prediction on the scale of the
learned target, or to 1 if that is larger."""
NEAR_ZERO = float(np.float32(1e-35))
NUM_CHECKED = 20_000
NUM_UNKNOWN = 500
"""The largest number of compared rows with unknown values, each of which is predicted 63 times."""
ROWS_AT_ONCE = 2_000
NUM_TIMED = 2_000
LINK_OF = {
    "binary:logistic": "Sigmoid",
    "multi:softprob": "Softmax",
    "reg:squarederror": "",
    "reg:absoluteerror": "",
    "rank:ndcg": "",
    "binary": "Sigmoid",
    "multiclass": "Softmax",
    "regression": "",
    "regression_l1": "",
    "lambdarank": "",
}
"""By the libraries' names of objectives, the ONNX operator that converts sums of leaves to predictions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """A node with two children, which are numbers of nodes in the same tree."""

    feature: int
    threshold: float = 0.0
    """A float32. Numbers below it go to `yes`; with `or_equal` also numbers equal to it."""
    or_equal: bool = False
    categories: tuple[int, ...] | None = None
    """The categories that go to `yes`; None for a numerical feature."""
    yes: int
    no: int
    missing_to_yes: bool


Tree = list[Split | float]
"""The nodes, starting at the root; a number is the value of a leaf."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trees:
    """A booster in a form for both libraries; tree number i belongs to class i modulo the number of classes."""

    trees: list[Tree]
    base: np.ndarray
    """The prediction without trees, before the link function, (K,); K is 1 except with several classes."""
    link: str

    def thresholds(self, feature: int) -> tuple[np.ndarray, bool]:
        """All thresholds of a numerical feature, or all categories of a categorical one; and whether it is categorical."""
        splits = [node for tree in self.trees for node in tree if isinstance(node, Split) and node.feature == feature]
        categories = {category for split in splits for category in split.categories or ()}
        numbers = {split.threshold for split in splits if split.categories is None}
        return np.array(sorted(categories | numbers), np.float32), len(splits) > 0 and not numbers


def export(member: str | Path, out: str | Path, data: str | Path = "") -> dict[str, Any]:
    """Write a member to the ONNX file `out`, after checking that its predictions are the member's.

    Both are compared on random values, at and beside the thresholds of the trees, and on NaN. With `data` they are also
    compared on rows of its test split (or else its first split), and the file contains the names of categories.

    Returns the number of compared rows, the largest difference, the tolerance, the features with neutral predictions, and
    the microseconds per row. Raises `UserError` for an invalid member or a file that cannot be written, and `Failure` if the
    predictions differ; then no file is written.
    """
    member, out = Path(member), Path(out)
    refuse_foreign_file(out, "ONNX file")
    model = folders.verify(member)["fingerprint"]
    if (member / folders.NEWEST).is_dir():
        member = member / folders.NEWEST
    summary = folders.read_json(member / "summary.json")
    library, booster = _load(member, summary["kind"])
    names = library.feature_names(booster)
    seen = unknown.SeenValues.load(member, names)
    neutral = [name for number, name in enumerate(names) if seen.complete[number] or number in seen.unseen]
    trees, scaling = READERS[summary["kind"]](booster), Scaling.all_from_summary(summary, 1)[0]
    metadata = {
        "library": summary["kind"],
        "model": model,
        "fingerprint": summary["fingerprint"],
        "recipe": summary["recipe"],
        "output": summary["output"],
        "features": [{"name": name} for name in names],
        "neutral": neutral,
        "opset": {"ai.onnx": OPSET, "ai.onnx.ml": OPSET_ML},
    }
    rows = [_rows_at_thresholds(trees, len(names))]
    if data:
        manifest = tree_manifest(data)
        split = "test" if "test" in manifest["splits"] else next(iter(manifest["splits"]))
        inputs.refuse_foreign(member, summary, data, manifest, split)
        metadata |= {"features": manifest["features"], "classes": manifest["task"].get("classes", ())}
        test = TreeData(data, split, manifest)
        sampled = test.take(np.unique(np.linspace(0, len(test) - 1, NUM_CHECKED).astype(np.int64)))
        rows.extend(sampled.batches())
    content = _model(trees, len(names), metadata, scaling, seen)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # which predicts single rows fastest
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def exported(features: np.ndarray) -> np.ndarray:
        return session.run(None, {"features": features})[0]

    native = functools.partial(library.predict, booster)
    features, has_unknown = _with_few_unknown(np.concatenate(rows), seen)
    expected = seen.predict(native, features)[0]
    blocks = np.split(features, np.arange(ROWS_AT_ONCE, len(features), ROWS_AT_ONCE))
    predictions = np.concatenate([exported(block) for block in blocks]).reshape(expected.shape)
    tolerance = TOLERANCE * max(1.0, float(np.abs(expected).max())) * scaling.scale
    difference = _checked_difference(member, predictions, scaling.value(expected), tolerance)
    with new_file(out, "ONNX file") as scratch:
        scratch.write_bytes(content)
    return {
        "rows": len(features),
        "difference": difference,
        "tolerance": tolerance,
        "neutral": neutral,
        "onnx_us": _one_row_us(exported, features[~has_unknown]),
        "native_us": _one_row_us(native, features[~has_unknown]),
    }


def _load(member: Path, kind: str) -> tuple[ModuleType, Any]:
    """The library's module and the booster of a member; `UserError` for a member that one ONNX file cannot hold."""
    if kind not in READERS:
        raise UserError(
            f"{member} is of kind '{kind}', and only {' and '.join(READERS)} can be exported: name another member"
        )
    library = library_module(kind)
    if not (member / library.FILE).is_file():
        raise UserError(
            f"{member} is the mean of several models, and an ONNX file holds one: train it with refit=true num_refits=1"
        )
    if (member / target_encoding.FILE).is_file():
        raise UserError(
            f"{member} learned from means of the target by category, which the ONNX file cannot hold: drop the "
            f"features with {target_encoding.MIN_CATEGORIES} categories or more"
        )
    return library, library.load(member / library.FILE)


def _checked_difference(member: Path, predictions: np.ndarray, expected: np.ndarray, tolerance: float) -> float:
    """The largest difference between two arrays, (n,) or (n, K); `Failure` if it is larger than the tolerance."""
    difference = np.abs(predictions - expected).reshape(len(expected), -1).max(axis=1)
    if not difference.max() <= tolerance:
        wrong = int((difference > tolerance).sum())
        raise Failure(
            f"the ONNX model differs from {member} by up to {difference.max():.2g} on {wrong} of {len(expected)} rows, more "
            f"than {tolerance:.2g}: nothing was written"
        )
    return float(difference.max())


def read_xgboost(booster: Any) -> Trees:
    """The left child has values below the threshold, or outside of the categories; thresholds are float32 already."""
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    model = learner["gradient_booster"]["model"]
    link = _link(learner["objective"]["name"])
    classes = max(1, int(learner["learner_model_param"]["num_class"]))
    base = np.resize(np.array(json.loads(learner["learner_model_param"]["base_score"]), np.float64), classes)
    trees = []
    for tree in model["trees"]:
        columns = (tree[f"categories_{name}"] for name in ("nodes", "segments", "sizes"))
        categories_of = {
            node: tuple(tree["categories"][begin : begin + size]) for node, begin, size in zip(*columns, strict=True)
        }
        nodes: Tree = []
        for number, left in enumerate(tree["left_children"]):
            right, value = tree["right_children"][number], tree["split_conditions"][number]
            to_left = bool(tree["default_left"][number])
            feature = tree["split_indices"][number]
            if left == -1:
                nodes.append(value)
            elif number in categories_of:
                categories = categories_of[number]
                nodes.append(Split(feature=feature, categories=categories, yes=right, no=left, missing_to_yes=not to_left))
            else:
                nodes.append(Split(feature=feature, threshold=value, yes=left, no=right, missing_to_yes=to_left))
        trees.append(nodes)
    assert model["tree_info"] == [number % classes for number in range(len(trees))]
    return Trees(trees=trees, base=np.log(base / (1 - base)) if link == "Sigmoid" else base, link=link)


def read_lightgbm(booster: Any) -> Trees:
    """The left child has values up to the threshold, or one of the categories."""
    model = booster.dump_model()
    return Trees(
        trees=[_lightgbm_nodes(tree["tree_structure"]) for tree in model["tree_info"]],
        base=np.zeros(model["num_tree_per_iteration"]),
        link=_link(model["objective"].split()[0]),
    )


def _lightgbm_nodes(root: dict[str, Any]) -> Tree:
    order, numbers = [root], {id(root): 0}
    for node in order:  # `order` grows during the loop
        for side in ("left_child", "right_child"):
            if side in node:
                numbers[id(node[side])] = len(order)
                order.append(node[side])
    nodes: Tree = []
    for node in order:
        if "leaf_value" in node:
            nodes.append(float(node["leaf_value"]))  # LightGBM writes 0 for 0.0
            continue
        if node["missing_type"] == "Zero":
            raise UserError(
                "this LightGBM model treats zeros as missing values, which ONNX cannot: train without zero_as_missing"
            )
        left, right = (numbers[id(node[side])] for side in ("left_child", "right_child"))
        split = functools.partial(Split, feature=node["split_feature"], yes=left, no=right)
        if node["decision_type"] == "==":
            categories = tuple(int(code) for code in node["threshold"].split("||"))
            nodes.append(split(categories=categories, missing_to_yes=False))
        else:
            missing = node["default_left"] if node["missing_type"] == "NaN" else node["threshold"] >= 0
            nodes.append(split(threshold=float32_threshold(node["threshold"]), or_equal=True, missing_to_yes=missing))
    return nodes


READERS: dict[str, Callable[[Any], Trees]] = {"xgboost": read_xgboost, "lightgbm": read_lightgbm}


def float32_threshold(value: float) -> float:
    """The largest float32 up to the threshold `value`, a float64, so that comparisons agree; values near 0 count as 0."""
    if 0 <= value <= NEAR_ZERO:
        return NEAR_ZERO
    if abs(value) > float(np.finfo(np.float32).max):  # a split by missing values has 1e300, and inf is below it too
        return math.copysign(math.inf, value)
    nearest = np.float32(-NEAR_ZERO if -NEAR_ZERO <= value < 0 else value)
    is_too_high = float(nearest) > value or float(nearest) == -NEAR_ZERO
    return float(np.nextafter(nearest, np.float32(-np.inf)) if is_too_high else nearest)


def _link(objective: str) -> str:
    if objective not in LINK_OF:
        raise UserError(f"the objective {objective} cannot be exported: train with one of {', '.join(LINK_OF)}")
    return LINK_OF[objective]


def _model(trees: Trees, num_features: int, metadata: dict[str, Any], scaling: Scaling, seen: unknown.SeenValues) -> bytes:
    """The graph: all trees in one node, then the link function, or the scaling to the target's unit in float64.

    If a value can be unknown, the nodes of neutral predictions are before the trees and after the link function.
    """
    num_classes = len(trees.base)
    columns: dict[str, Any] = {name: [] for name in (*NODE_COLUMNS, *LEAF_COLUMNS)}
    for number, tree in enumerate(trees.trees):
        for node in _onnx_nodes(tree, number, number % num_classes):
            for name, value in node.items():
                columns[name].append(value)
    graph = Graph()
    features = before(graph, seen) if metadata["neutral"] else FEATURES
    columns |= {"n_targets": num_classes, "base_values": [float(value) for value in trees.base]}
    last = graph.add("TreeEnsembleRegressor", features, domain="ai.onnx.ml", **columns)
    if trees.link:
        last = graph.add(trees.link, last)
    if metadata["neutral"]:
        last = after(graph, last, num_classes)
    if not scaling.is_identity:
        last = graph.add("Cast", last, to=TensorProto.DOUBLE)
        last = graph.add("Mul", last, graph.constant([scaling.scale], np.float64))
        last = graph.add("Add", last, graph.constant([scaling.center], np.float64))
    classes = [num_classes] if num_classes > 1 else []
    graph.add("Reshape", last, graph.constant([-1, *classes]), name="prediction")
    kind = TensorProto.FLOAT if scaling.is_identity else TensorProto.DOUBLE
    onnx_graph = helper.make_graph(
        graph.nodes,
        metadata["library"],
        [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["n", num_features])],
        [helper.make_tensor_value_info("prediction", kind, ["n", *classes])],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", OPSET_ML)]
    model = helper.make_model(
        onnx_graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="accelerate-ensemble", doc_string=MARK
    )
    helper.set_model_props(
        model, {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


NODE_COLUMNS = tuple(
    f"nodes_{name}"
    for name in "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true".split()
)
LEAF_COLUMNS = tuple(f"target_{name}" for name in "treeids nodeids ids weights".split())


def _onnx_nodes(tree: Tree, number: int, target: int) -> Iterator[dict[str, Any]]:
    """A tree's nodes by ONNX's names. ONNX has no sets of categories: a set becomes a chain of equalities with one `yes`."""
    next_free = len(tree)

    def node(index: int, feature: int, mode: str, value: float, yes: int, no: int, missing: bool) -> dict[str, Any]:
        return dict(zip(NODE_COLUMNS, (number, index, feature, mode, value, yes, no, int(missing)), strict=True))

    for index, content in enumerate(tree):
        if not isinstance(content, Split):
            yield node(index, 0, "LEAF", 0.0, 0, 0, False)
            yield dict(zip(LEAF_COLUMNS, (number, index, target, content), strict=True))
        elif content.categories is None:
            mode = "BRANCH_LEQ" if content.or_equal else "BRANCH_LT"
            branches = (content.yes, content.no, content.missing_to_yes)
            yield node(index, content.feature, mode, content.threshold, *branches)
        else:
            for code in content.categories:
                is_last = code == content.categories[-1]
                no = content.no if is_last else next_free
                yield node(index, content.feature, "BRANCH_EQ", code, content.yes, no, content.missing_to_yes)
                index, next_free = no, next_free if is_last else next_free + 1


def _rows_at_thresholds(trees: Trees, num_features: int) -> np.ndarray:
    """Rows that reveal a wrong export: values at thresholds, beside them and random ones, zeros, and a fifth missing."""
    generator = np.random.default_rng(0)
    rows = np.empty((NUM_CHECKED, num_features), np.float32)
    for feature in range(num_features):
        thresholds, is_category = trees.thresholds(feature)
        spread = np.abs(thresholds[np.isfinite(thresholds)]).max(initial=1.0)
        below, above = (np.nextafter(thresholds, np.float32(side)) for side in (-np.inf, np.inf))
        random_values = np.float32(spread) * generator.standard_normal(2 * len(thresholds) + 2).astype(np.float32)
        values = np.concatenate([below, thresholds, above, random_values, [0.0]])
        if is_category:
            values = np.arange(spread + 1, dtype=np.float32)
        rows[:, feature] = generator.choice(values, NUM_CHECKED)
    rows[generator.random(rows.shape) < 0.2] = np.nan
    return rows


def _with_few_unknown(features: np.ndarray, seen: unknown.SeenValues) -> tuple[np.ndarray, np.ndarray]:
    """The rows, and which of them have unknown values: at most `NUM_UNKNOWN`. In further rows these values are replaced."""
    is_replaced = seen.is_unknown(features)
    rows = np.flatnonzero(is_replaced.any(axis=1))
    unchanged = np.random.default_rng(0).permutation(rows)[:NUM_UNKNOWN]
    is_replaced[unchanged] = False
    number = np.arange(len(features))
    return np.where(is_replaced, seen.reference[number % len(seen.reference)], features), np.isin(number, unchanged)


def _one_row_us(predict: Callable[[np.ndarray], np.ndarray], features: np.ndarray) -> dict[str, float]:
    """Microseconds of a prediction for one row, without the first tenth of the calls: the median and the 99 % quantile."""
    durations = []
    for number in range(NUM_TIMED):
        row = features[number : number + 1]
        began = time.perf_counter()
        predict(row)
        durations.append(1e6 * (time.perf_counter() - began))
    p50, p99 = np.percentile(durations[NUM_TIMED // 10 :], (50, 99))
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1)}
