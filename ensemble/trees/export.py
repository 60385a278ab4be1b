"""A tree member as one ONNX file, for ONNX Runtime in any language; it needs pip install 'accelerate-ensemble[export]'.

    python scripts/export_model.py member=runs/demo/members/xgboost out=runs/demo/xgboost.onnx data=runs/demo/prepared

    input     features     (n, F) float32; what is missing is NaN, a category its number
    output    prediction   (n,) float32, or (n, K) for K classes, or (n,) float64 of a value: what scripts/predict.py writes

A missing value in a feature that training always had, or a category that it never had, gets the neutral prediction of
scripts/predict.py (unknown.py, neutral.py). The file names such features in its metadata, under `neutral`.

The trees are read from what the libraries themselves say of them. LightGBM compares in float64, so its thresholds are
rounded down to float32 (its usual converter rounds to the nearest, and answers otherwise for values that stand at a
threshold); and it takes for 0 what is within 1e-35 of it, and a missing value where it saw none in training. So the file is
compared with the member on such values before it is written.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.data import inputs
from ensemble.errors import Failure, UserError
from ensemble.folders import MARK, new_file, refuse_foreign_file, refuse_inside
from ensemble.trees import target_encoding, unknown
from ensemble.trees.predict import module_of
from ensemble.trees.rows import TreeData, description
from ensemble.trees.scaling import Scaling

try:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    from ensemble.trees.neutral import FEATURES, Graph, after, before
except ModuleNotFoundError as error:
    raise UserError(f"the package {error.name} is not installed: pip install 'accelerate-ensemble[export]'") from None

OPSET, OPSET_ML, IR_VERSION = 17, 3, 8
"""Those of 2022, which old runtimes read too."""
TOLERANCE = 1e-5
"""Of the difference between the file and the member, as a part of the largest prediction, or of 1 if that is more."""
NEAR_ZERO = float(np.float32(1e-35))
NUM_CHECKED = 20_000
NUM_UNKNOWN = 500
"""Rows with unknown values that are compared; each is predicted 63 times."""
ROWS_AT_ONCE = 2_000
NUM_TIMED = 2_000
LINK_OF = {
    "binary:logistic": "Sigmoid",
    "multi:softprob": "Softmax",
    "reg:squarederror": "",
    "rank:ndcg": "",
    "binary": "Sigmoid",
    "multiclass": "Softmax",
    "regression": "",
    "lambdarank": "",
}
"""Objectives in the libraries' words, and what makes the sums of leaves their predictions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """A node that is no leaf; children are numbers of nodes in the same tree."""

    feature: int
    threshold: float = 0.0
    """A numerical value that is below it goes to `yes`; with `or_equal` also one that equals it. It is a float32."""
    or_equal: bool = False
    categories: tuple[int, ...] | None = None
    """Of a categorical feature, those that go to `yes`."""
    yes: int
    no: int
    missing_to_yes: bool


Tree = list[Split | float]
"""Nodes from the root on; a number is the value of a leaf."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trees:
    """A booster in words that both libraries share; tree number i adds to class i modulo the number of classes."""

    trees: list[Tree]
    base: np.ndarray
    """What is there without any tree, of shape (K,): 1 but for several classes."""
    link: str

    def thresholds(self, feature: int) -> np.ndarray:
        """Every value at which a numerical feature is split, and every category that is told apart."""
        splits = [node for tree in self.trees for node in tree if isinstance(node, Split) and node.feature == feature]
        codes = {code for split in splits for code in split.categories or ()}
        return np.array(sorted(codes | {split.threshold for split in splits if split.categories is None}), np.float32)


def export(member: str | Path, out: str | Path, data: str | Path = "") -> dict[str, Any]:
    """Write a member to the ONNX file `out`, once its predictions are seen to be the member's.

    They are compared on random values, the trees' thresholds and their neighbours, and NaN; with `data`, on the rows of its
    test split too, and the file then knows the features' categories. Returns the number of rows compared, the largest
    difference, the tolerance, the features with values that have a neutral prediction, and the microseconds that one row
    takes. Raises `UserError` for what is no sound tree member, or cannot be written; `Failure` when the predictions differ.
    Then there is no file.
    """
    member, out = Path(member), Path(out)
    refuse_inside(out)
    refuse_foreign_file(out, "ONNX file")
    model = folders.verify(member)["fingerprint"]
    summary = folders.read_json(member / "summary.json")
    library = module_of(summary["kind"])
    if not (member / library.FILE).is_file():
        raise UserError(f"{member} is the mean of several models, and one file holds one: train it with refit=true")
    if (member / target_encoding.FILE).is_file():
        raise UserError(
            f"{member} learned from means of the target by category, which the ONNX file cannot hold: drop the "
            f"features with {target_encoding.MIN_CATEGORIES} categories or more"
        )
    booster = library.load(member / library.FILE)
    names = library.feature_names(booster)
    known = unknown.Known.load(member, names)
    neutral = [name for number, name in enumerate(names) if known.complete[number] or number in known.unseen]
    trees, scaling = READERS[summary["kind"]](booster), Scaling.in_summary(summary)
    about = {
        "library": summary["kind"],
        "model": model,
        "fingerprint": summary["fingerprint"],
        "recipe": summary["recipe"],
        "output": summary["output"],
        "features": [{"name": name} for name in names],
        "neutral": neutral,
        "opset": {"ai.onnx": OPSET, "ai.onnx.ml": OPSET_ML},
    }
    rows = [_hard_rows(trees, len(names))]
    if data:
        manifest_of_data = description(data)
        split = "test" if "test" in manifest_of_data["splits"] else next(iter(manifest_of_data["splits"]))
        inputs.refuse_foreign(member, summary, data, manifest_of_data, split)
        about |= {"features": manifest_of_data["features"], "classes": manifest_of_data["task"].get("classes", ())}
        rows.append(_rows_of(TreeData(data, split, manifest_of_data)))
    content = _model(trees, len(names), about, scaling, known)
    session = _session(content)

    def exported(features: np.ndarray) -> np.ndarray:
        return session.run(None, {"features": features})[0]

    def native(features: np.ndarray) -> np.ndarray:
        return library.predict(booster, features)

    features, has_unknown = _with_few_unknown(np.concatenate(rows), known)
    expected = known.predict(native, features)[0]
    blocks = np.split(features, np.arange(ROWS_AT_ONCE, len(features), ROWS_AT_ONCE))
    found = np.concatenate([exported(block) for block in blocks]).reshape(expected.shape)
    difference = np.abs(found - scaling.value(expected))
    tolerance = TOLERANCE * max(1.0, float(np.abs(expected).max())) * scaling.scale
    if not difference.max() <= tolerance:
        wrong = int((difference.reshape(len(features), -1).max(axis=1) > tolerance).sum())
        raise Failure(
            f"the ONNX model differs from {member} by up to {difference.max():.2g} on {wrong} of {len(features)} rows, more "
            f"than {tolerance:.2g}: nothing was written"
        )
    with new_file(out, "ONNX file") as scratch:
        scratch.write_bytes(content)
    return {
        "rows": len(features),
        "difference": float(difference.max()),
        "tolerance": tolerance,
        "neutral": neutral,
        "onnx_us": _one_row_us(exported, features[~has_unknown]),
        "native_us": _one_row_us(native, features[~has_unknown]),
    }


def read_xgboost(booster: Any) -> Trees:
    """Left is below the threshold, or not among the categories; both are float32 already."""
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    model = learner["gradient_booster"]["model"]
    link = _link(learner["objective"]["name"])
    classes = max(1, int(learner["learner_model_param"]["num_class"]))
    base = np.resize(np.array(json.loads(learner["learner_model_param"]["base_score"]), np.float64), classes)
    trees = []
    for tree in model["trees"]:
        pieces = zip(tree["categories_segments"], tree["categories_sizes"], strict=True)
        sets = {
            node: tuple(tree["categories"][begin : begin + size])
            for node, (begin, size) in zip(tree["categories_nodes"], pieces, strict=True)
        }
        nodes: Tree = []
        for number, left in enumerate(tree["left_children"]):
            right, value = tree["right_children"][number], tree["split_conditions"][number]
            to_left = bool(tree["default_left"][number])
            feature = tree["split_indices"][number]
            if left == -1:
                nodes.append(value)
            elif number in sets:
                nodes.append(Split(feature=feature, categories=sets[number], yes=right, no=left, missing_to_yes=not to_left))
            else:
                nodes.append(Split(feature=feature, threshold=value, yes=left, no=right, missing_to_yes=to_left))
        trees.append(nodes)
    assert model["tree_info"] == [number % classes for number in range(len(trees))]
    return Trees(trees=trees, base=np.log(base / (1 - base)) if link == "Sigmoid" else base, link=link)


def read_lightgbm(booster: Any) -> Trees:
    """Left is at most the threshold, or among the categories."""
    found = booster.dump_model()
    return Trees(
        trees=[_lightgbm_nodes(tree["tree_structure"]) for tree in found["tree_info"]],
        base=np.zeros(found["num_tree_per_iteration"]),
        link=_link(found["objective"].split()[0]),
    )


def _lightgbm_nodes(root: dict[str, Any]) -> Tree:
    order, numbers = [root], {id(root): 0}
    for node in order:  # grows as it goes
        for side in ("left_child", "right_child"):
            if side in node:
                numbers[id(node[side])] = len(order)
                order.append(node[side])
    nodes: Tree = []
    for node in order:
        if "leaf_value" in node:
            nodes.append(node["leaf_value"])
            continue
        if node["missing_type"] == "Zero":
            raise UserError("this LightGBM model takes zeros for missing values, which ONNX cannot say: train it otherwise")
        sides: dict[str, Any] = {"yes": numbers[id(node["left_child"])], "no": numbers[id(node["right_child"])]}
        if node["decision_type"] == "==":
            categories = tuple(int(code) for code in node["threshold"].split("||"))
            nodes.append(Split(feature=node["split_feature"], categories=categories, missing_to_yes=False, **sides))
        else:
            missing = node["default_left"] if node["missing_type"] == "NaN" else node["threshold"] >= 0
            threshold = float32_threshold(node["threshold"])
            nodes.append(
                Split(feature=node["split_feature"], threshold=threshold, or_equal=True, missing_to_yes=missing, **sides)
            )
    return nodes


READERS: dict[str, Callable[[Any], Trees]] = {"xgboost": read_xgboost, "lightgbm": read_lightgbm}


def float32_threshold(value: float) -> float:
    """The largest float32 that LightGBM finds at most `value`, a float64; what is near 0 counts as 0."""
    if 0 <= value <= NEAR_ZERO:
        return NEAR_ZERO
    nearest = np.float32(-NEAR_ZERO if -NEAR_ZERO <= value < 0 else value)
    is_too_high = float(nearest) > value or float(nearest) == -NEAR_ZERO
    return float(np.nextafter(nearest, np.float32(-np.inf)) if is_too_high else nearest)


def _link(objective: str) -> str:
    if objective not in LINK_OF:
        raise UserError(f"the objective {objective} cannot be exported: train with one of {', '.join(LINK_OF)}")
    return LINK_OF[objective]


def _model(trees: Trees, num_features: int, about: dict[str, Any], scaling: Scaling, known: unknown.Known) -> bytes:
    """The graph: all trees in one node, then the link, or the way back to the target's unit in float64.

    Where a value can be unknown, the nodes of neutral predictions are around trees and link.
    """
    num_classes = len(trees.base)
    columns: dict[str, Any] = {name: [] for name in (*NODE_COLUMNS, *LEAF_COLUMNS)}
    for number, tree in enumerate(trees.trees):
        for node in _onnx_nodes(tree, number, number % num_classes):
            for name, value in node.items():
                columns[name].append(value)
    graph = Graph()
    asked = before(graph, known) if about["neutral"] else FEATURES
    base = [float(value) for value in trees.base]
    last = graph.add("TreeEnsembleRegressor", asked, domain="ai.onnx.ml", n_targets=num_classes, base_values=base, **columns)
    if trees.link:
        last = graph.add(trees.link, last)
    if about["neutral"]:
        last = after(graph, last, num_classes)
    if not scaling.is_identity:
        last = graph.add("Cast", last, to=TensorProto.DOUBLE)
        last = graph.add("Mul", last, graph.constant([scaling.scale], np.float64))
        last = graph.add("Add", last, graph.constant([scaling.center], np.float64))
    shape: list[str | int] = ["n", num_classes] if num_classes > 1 else ["n"]
    if num_classes == 1:
        graph.add("Reshape", last, graph.constant([-1]), name="prediction")
    else:
        graph.add("Identity", last, name="prediction")
    kind = TensorProto.FLOAT if scaling.is_identity else TensorProto.DOUBLE
    whole = helper.make_graph(
        graph.nodes,
        about["library"],
        [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["n", num_features])],
        [helper.make_tensor_value_info("prediction", kind, shape)],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", OPSET_ML)]
    model = helper.make_model(
        whole, opset_imports=opsets, ir_version=IR_VERSION, producer_name="accelerate-ensemble", doc_string=MARK
    )
    helper.set_model_props(
        model, {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


NODE_COLUMNS = tuple(
    f"nodes_{name}"
    for name in "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true".split()
)
LEAF_COLUMNS = tuple(f"target_{name}" for name in "treeids nodeids ids weights".split())


def _onnx_nodes(tree: Tree, number: int, target: int) -> Iterator[dict[str, Any]]:
    """A tree's nodes in ONNX's words, which have no sets: those become a chain of equalities with one `yes`."""
    next_free = len(tree)

    def node(place: int, feature: int, mode: str, value: float, yes: int, no: int, missing: bool) -> dict[str, Any]:
        return dict(zip(NODE_COLUMNS, (number, place, feature, mode, value, yes, no, int(missing)), strict=True))

    for place, content in enumerate(tree):
        if not isinstance(content, Split):
            yield node(place, 0, "LEAF", 0.0, 0, 0, False)
            yield dict(zip(LEAF_COLUMNS, (number, place, target, content), strict=True))
        elif content.categories is None:
            mode = "BRANCH_LEQ" if content.or_equal else "BRANCH_LT"
            sides = (content.yes, content.no, content.missing_to_yes)
            yield node(place, content.feature, mode, content.threshold, *sides)
        else:
            for code in content.categories:
                is_last = code == content.categories[-1]
                no = content.no if is_last else next_free
                yield node(place, content.feature, "BRANCH_EQ", code, content.yes, no, content.missing_to_yes)
                place, next_free = no, next_free if is_last else next_free + 1


def _session(content: bytes) -> Any:
    """On one thread, as it answers single rows fastest."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _hard_rows(trees: Trees, num_features: int) -> np.ndarray:
    """Rows on which a wrong export shows: values at thresholds, next to them and anywhere, zeros, and a fifth missing."""
    generator = np.random.default_rng(0)
    rows = np.empty((NUM_CHECKED, num_features), np.float32)
    for feature in range(num_features):
        at = trees.thresholds(feature)
        spread = np.abs(at).max(initial=1.0)
        below, above = (np.nextafter(at, np.float32(side)) for side in (-np.inf, np.inf))
        anywhere = np.float32(spread) * generator.standard_normal(2 * len(at) + 2).astype(np.float32)
        is_category = any(
            isinstance(node, Split) and node.feature == feature and node.categories is not None
            for tree in trees.trees
            for node in tree
        )
        some = (
            np.arange(spread + 1, dtype=np.float32) if is_category else np.concatenate([below, at, above, anywhere, [0.0]])
        )
        rows[:, feature] = generator.choice(some, NUM_CHECKED)
    rows[generator.random(rows.shape) < 0.2] = np.nan
    return rows


def _with_few_unknown(features: np.ndarray, known: unknown.Known) -> tuple[np.ndarray, np.ndarray]:
    """The rows, with known values in place of unknown ones in all but `NUM_UNKNOWN`, and which have an unknown value."""
    is_unknown = known.unknown(features)
    rows = np.flatnonzero(is_unknown.any(axis=1))
    kept = np.random.default_rng(0).permutation(rows)[:NUM_UNKNOWN]
    is_unknown[kept] = False
    turns = np.arange(len(features)) % len(known.reference)
    return np.where(is_unknown, known.reference[turns], features), np.isin(np.arange(len(features)), kept)


def _rows_of(split: TreeData) -> np.ndarray:
    taken = split.take(np.unique(np.linspace(0, len(split) - 1, NUM_CHECKED).astype(np.int64)))
    return np.concatenate(list(taken.batches()))


def _one_row_us(predict: Callable[[np.ndarray], np.ndarray], features: np.ndarray) -> dict[str, float]:
    """Microseconds of a prediction for one row: the median, and what only one of a hundred takes longer than."""
    taken = []
    for number in range(NUM_TIMED):
        row = features[number : number + 1]
        began = time.perf_counter()
        predict(row)
        taken.append(1e6 * (time.perf_counter() - began))
    p50, p99 = np.percentile(taken[NUM_TIMED // 10 :], (50, 99))
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1)}
