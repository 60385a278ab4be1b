"""Extremely randomised trees (Geurts et al. 2006): the mean of deep trees whose splits have random thresholds.

scikit-learn grows the trees, and XGBoost predicts, whose format is no code, unlike a pickle. A probability is the mean of
the shares of a class in the leaves and in all rows, which count as one more tree, so that no probability is 0.

No tree depends on another one, so there is no early stopping: with more trees, only noise is added or removed.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ensemble.trees import xgb
from ensemble.trees.boosting import Scores, Training
from ensemble.trees.copies import LOSS_OF, check_learnable, train_separately
from ensemble.trees.objective import ValidationMetrics, dataset_of, objective_of
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig
from ensemble.trees.xgb import xgboost

FILE = xgb.FILE
load, to_bytes, feature_names, importance = xgb.load, xgb.to_bytes, xgb.feature_names, xgb.importance
LEAST_PROBABILITY = 1e-7
NO_PARENT = 2**31 - 1
TYPES = {"<f4": "d", "<i4": "l", "<i8": "L", "|u1": "U"}
"""The markers of types of arrays in UBJSON, by NumPy's."""


def train_copies(
    config: TreesConfig, parts: Sequence[tuple[TreeData, TreeData | None]], training: Training, run: Callable[..., Any]
) -> tuple[list[Any], list[Scores], int]:
    """Grow a forest on each of `parts`; `copies.train_separately` describes the arguments.

    Returns the forests, the mean of their losses with the first 1, 2, … trees on the rows for early stopping, and the
    least of their numbers of trees. Without such rows there are no losses.
    """
    importlib.import_module("sklearn.ensemble")  # which takes a second, before the time of the copies begins
    results = train_separately(config, parts, training, _from_bytes, train_copy, run)
    num_trees = min(len(losses) or config.num_rounds for _, losses in results)
    losses = np.array([losses[:num_trees] for _, losses in results]).mean(axis=0)
    name = LOSS_OF[objective_of(config, parts[0][0]).kind]
    return [forest for forest, _ in results], [{name: float(loss)} for loss in losses], num_trees


def train_copy(
    config: TreesConfig, number: int, rows: TreeData, stop: TreeData | None, is_over: Callable[[], bool]
) -> tuple[Any, np.ndarray]:
    """The forest of copy `number`, as a booster of XGBoost, and its loss on the rows `stop` with the first 1, 2, … trees.

    `config.chunk_rounds` trees are grown at once, until there are `config.num_rounds`, or `is_over` returns true. The
    losses, (T,), are in the unit of the target; they are empty without `stop`.
    """
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    objective = objective_of(config, rows)
    check_learnable(config, objective)
    dataset, is_regression = dataset_of(objective, rows), objective.kind == "regression"
    assert dataset.target is not None
    features, target = xgb.finite(dataset.rows.matrix()), dataset.target  # scikit-learn refuses infinity
    grower = (ExtraTreesRegressor if is_regression else ExtraTreesClassifier)(
        n_estimators=0,
        max_features=config.column_fraction,
        min_samples_leaf=max(1, round(config.min_leaf_weight)),
        random_state=config.seed + number,
        warm_start=True,
    )
    while grower.n_estimators < config.num_rounds and not (grower.n_estimators and is_over()):
        grower.n_estimators = min(config.num_rounds, grower.n_estimators + config.chunk_rounds)
        grower.fit(features, target if is_regression else target.astype(np.int64), dataset.weight)
    trees = [estimator.tree_ for estimator in grower.estimators_]
    prior_K, values = np.zeros(1), [tree.value[:, 0, :] for tree in trees]
    if not is_regression:
        num_classes = max(2, objective.num_classes)
        shares = np.bincount(target.astype(np.int64), dataset.weight, num_classes)
        prior_K = shares / shares.sum()
        values = [_shares(value, grower.classes_, num_classes) for value in values]
    if objective.kind == "binary":
        prior_K, values = prior_K[1:], [value[:, 1:] for value in values]
    num_terms = len(trees) + (not is_regression)
    forest = _booster(objective.kind, dataset.rows.features, trees, values, prior_K, num_terms)
    forest.set_param({"nthread": config.threads})
    if stop is None:
        return forest, np.empty(0)
    name = LOSS_OF[objective.kind]
    score = ValidationMetrics(dataclasses.replace(objective, metric=name), stop)
    held, total, losses = xgb.finite(stop.matrix()), prior_K, []
    for num_trees, (tree, value) in enumerate(zip(trees, values, strict=True), start=1):
        total = total + value[tree.apply(held)]
        mean = total / (num_trees + (not is_regression))
        losses.append(score(mean if objective.kind == "multiclass" else mean[:, 0])[name])
    return forest, np.array(losses)


def _shares(value: np.ndarray, classes: np.ndarray, num_classes: int) -> np.ndarray:
    """The shares of all classes in each node, (nodes, K). value : the weights of the `classes` that have rows."""
    shares = np.zeros((len(value), num_classes))
    shares[:, classes] = value / value.sum(axis=1, keepdims=True)
    return shares


def _booster(
    kind: str, features: list[str], trees: Sequence[Any], values: Sequence[np.ndarray], prior_K: np.ndarray, num_terms: int
) -> Any:
    """A booster of XGBoost that predicts (prior + sum of the leaves' values) / `num_terms`.

    trees : of scikit-learn. values : of the nodes of each tree, (nodes, K). In the booster, each of the K outputs has trees
    of its own.
    """
    num_outputs, num_trees = len(prior_K), len(trees) * len(prior_K)
    content = {
        "learner": {
            "attributes": {"kind": kind},
            "feature_names": features,
            "feature_types": ["float"] * len(features),
            "gradient_booster": {
                "model": {
                    "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(num_trees)},
                    "iteration_indptr": list(range(0, num_trees + 1, num_outputs)),
                    "tree_info": list(range(num_outputs)) * len(trees),
                    "trees": [
                        _tree(len(features), tree, value[:, output] / num_terms, number * num_outputs + output)
                        for number, (tree, value) in enumerate(zip(trees, values, strict=True))
                        for output in range(num_outputs)
                    ],
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": f"[{','.join(f'{prior:.9e}' for prior in prior_K / num_terms)}]",
                "boost_from_average": "0",
                "num_class": "0",
                "num_feature": str(len(features)),
                "num_target": str(num_outputs),
            },
            "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
        },
        "version": list(map(int, xgboost.__version__.split(".")[:3])),
    }
    return _from_bytes(_ubjson(content))


def _tree(num_features: int, tree: Any, value: np.ndarray, number: int) -> dict[str, Any]:
    """A tree of scikit-learn in the format of XGBoost. value : of each node, (nodes,)."""
    order = _level_order(tree)
    is_inner, new_number = tree.children_left[order] >= 0, np.argsort(order)
    inner, of_inner = np.flatnonzero(is_inner), order[is_inner]
    left, right = new_number[tree.children_left[of_inner]], new_number[tree.children_right[of_inner]]

    def column(kind: str, of_nodes: Any, of_inner_nodes: Any) -> np.ndarray:
        filled = np.full(len(order), of_nodes, kind)
        filled[inner] = of_inner_nodes
        return filled

    # scikit-learn goes left if x <= threshold, in float64, and XGBoost if x < threshold, in float32
    threshold = tree.threshold[of_inner].astype(np.float32)
    threshold = np.where(threshold > tree.threshold[of_inner], np.nextafter(threshold, np.float32(-np.inf)), threshold)
    weight = tree.weighted_n_node_samples[order]
    impurity = weight * tree.impurity[order]
    parent = column("<i4", NO_PARENT, NO_PARENT)
    parent[left] = parent[right] = inner
    return {
        "base_weights": value[order].astype("<f4"),
        **{f"categories{part}": np.empty(0, "<i4") for part in ("", "_nodes")},
        **{f"categories_{part}": np.empty(0, "<i8") for part in ("segments", "sizes")},
        "default_left": column("|u1", 0, tree.missing_go_to_left[of_inner]),
        "id": number,
        "left_children": column("<i4", -1, left),
        "loss_changes": column("<f4", 0, (impurity[inner] - impurity[left] - impurity[right]).clip(0)),
        "parents": parent,
        "right_children": column("<i4", -1, right),
        "split_conditions": column("<f4", value[order], np.nextafter(threshold, np.float32(np.inf))),
        "split_indices": column("<i4", 0, tree.feature[of_inner]),
        "split_type": np.zeros(len(order), "|u1"),
        "sum_hessian": weight.astype("<f4"),
        "tree_param": {
            "num_deleted": "0", "num_feature": str(num_features), "num_nodes": str(len(order)), "size_leaf_vector": "1",
        },
    }  # fmt: skip


def _level_order(tree: Any) -> np.ndarray:
    """The nodes of a tree of scikit-learn, level by level: XGBoost takes the node after a left child for the right one."""
    levels = [np.zeros(1, np.int64)]
    while levels[-1].size:
        inner = levels[-1][tree.children_left[levels[-1]] >= 0]
        levels.append(np.stack([tree.children_left[inner], tree.children_right[inner]], axis=1).ravel())
    return np.concatenate(levels)


def _ubjson(value: Any) -> bytes:
    """A value in Universal Binary JSON; arrays of NumPy are arrays of one type."""
    if isinstance(value, dict):
        return b"{" + b"".join(_ubjson(key)[1:] + _ubjson(item) for key, item in value.items()) + b"}"
    if isinstance(value, str):
        return b"S" + _ubjson(len(value.encode())) + value.encode()
    if isinstance(value, np.ndarray):
        in_big_endian = value.astype(value.dtype.newbyteorder(">"))
        return f"[${TYPES[value.dtype.str]}#".encode() + _ubjson(len(value)) + in_big_endian.tobytes()
    if isinstance(value, list):
        return b"[#" + _ubjson(len(value)) + b"".join(map(_ubjson, value))
    return b"L" + int(value).to_bytes(8, "big", signed=True)


def _from_bytes(content: bytes) -> Any:
    return xgboost.Booster({"nthread": 1}, model_file=bytearray(content))


def first_rounds(forest: Any, num_rounds: int) -> Any:
    """The forest itself: its prediction is the mean of all its trees, however many it has."""
    return forest


def predict(forest: Any, features: np.ndarray) -> np.ndarray:
    """Probabilities or values (n,), or probabilities of classes (n, K), for features (n, F)."""
    means = forest.inplace_predict(features, validate_features=False)
    if forest.attr("kind") == "multiclass":
        means = np.maximum(means, LEAST_PROBABILITY)
        return means / means.sum(axis=1, keepdims=True)
    return np.clip(means, 0, 1) if forest.attr("kind") == "binary" else means


def contributions(forest: Any, features: np.ndarray) -> np.ndarray:
    """The contribution of each feature to the log odds, value, or log of the probability of each class; last the base value,
    that of the rows of training: (n, F + 1), or (n, K, F + 1) with several classes.

    A feature contributes the changes of the mean at its splits (Saabas 2014): Shapley values of such deep trees would take
    minutes. For probabilities they are multiplied by one factor for each row, so that they sum to the change of the log odds
    or the log.
    """
    data = xgboost.DMatrix(xgb.finite(features), feature_names=feature_names(forest))
    parts = forest.predict(data, pred_contribs=True, approx_contribs=True).astype(np.float64)
    kind = forest.attr("kind")
    if kind == "regression":
        return parts
    base, mean = (np.clip(part, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY) for part in (parts[..., -1], parts.sum(axis=-1)))
    before, after = (np.log(part) - (np.log1p(-part) if kind == "binary" else 0) for part in (base, mean))
    change = mean - base
    factor = np.divide(after - before, change, out=np.zeros_like(change), where=np.abs(change) > LEAST_PROBABILITY)
    return np.concatenate([parts[..., :-1] * factor[..., None], before[..., None]], axis=-1)
