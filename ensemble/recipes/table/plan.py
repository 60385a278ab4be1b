"""The members of a table, chosen by measurement on the public tables; see README.md."""

import dataclasses
import math
from typing import Any

from ensemble.data.cross_validation import CrossValidation
from ensemble.pipeline.plan import PlannedMember
from ensemble.recipes.table.sizes import MANY_CLASSES
from ensemble.task import ABSOLUTE_ERROR, task_of

FEW_ROWS, MANY_ROWS = 10_000, 75_000
FEATURES_OF_A_TREE = 6
"""A tree of XGBoost or LightGBM may use at least this number of features: with fewer it could not learn interactions."""
MOST_LINEAR_WORK, MOST_WIDE_LINEAR_WORK = 2e10, 1.2e11
"""The linear model is a member if one copy is fitted in at most this number of operations (a few seconds), or the larger one
if there are fewer rows than features, where it is often the best member."""
LINEAR_S_PER_OPERATION = 8e-11
"""Eight copies with 1.1e11 operations each took 69 s on two cores: a generated table of 2,000 rows and 5,000 numbers, of
which 30 matter. The out-of-fold error is 1.06 times the noise, that of an ensemble without it 4.8 times."""
LINEAR_SHARE, WIDE_LINEAR_SHARE = 3.0, 10.0
"""The shares of the linear model in the remaining time: the usual one, and that of a model that takes more than a few
seconds."""
SMALL: dict[str, dict[str, Any]] = {
    "lightgbm": {"max_leaves": 31, "column_fraction": 1.0, "l2": 0.0},
    "catboost": {"max_leaves": 64, "learning_rate": 0.1, "l2": 3.0},
    "xgboost": {"max_leaves": 15, "column_fraction": 0.4, "l2": 5.0, "min_leaf_weight": 2.0},
}
"""For fewer than `FEW_ROWS` rows. LightGBM has no penalty, which suits targets with little noise. XGBoost has a strong one,
which suits the others. CONTRIBUTING.md has figures."""
LARGE: dict[str, dict[str, Any]] = {
    "lightgbm": {"max_leaves": 31, "column_fraction": 0.7, "l2": 1.0},
    "catboost": {"max_leaves": 64, "learning_rate": 0.1, "l2": 3.0},
    "xgboost": {"max_leaves": 64, "column_fraction": 0.7, "l2": 1.0},
}
HUGE: dict[str, dict[str, Any]] = {
    "lightgbm": {"max_leaves": 127, "column_fraction": 0.7, "l2": 1.0},
    "xgboost": {"max_leaves": 128, "column_fraction": 0.7, "l2": 1.0},
    "catboost": {"max_leaves": 256, "learning_rate": 0.1, "l2": 3.0},
}
"""From `MANY_ROWS` rows on, where small trees need too many rounds, and CatBoost is slow."""
FOREST_TREES, FOREST_LEAVES, FOREST_OUTPUTS = (40, 200), 400_000, 20_000
"""Of extremely randomised trees: the least and the largest number of trees; rows times trees and classes, which determine
the size of a copy, if there are more trees than the least; and the largest number of rows times classes, with which a copy
has some 20 MB."""
FOREST_FEATURES = 200
"""The largest number of features that a split draws if it may draw all: with more it would take too long."""
SLOW = {"learning_rate": 0.02, "num_rounds": 5000}
SMALL_VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("catboost", {"max_leaves": 16}),
    ("xgboost", {"max_leaves": 31, "column_fraction": 0.8, "l2": 0.5, "min_leaf_weight": 1.0}),
    ("lightgbm", {"max_leaves": 15, "column_fraction": 0.5, "l2": 5.0, **SLOW}),
    ("xgboost", SLOW),
    ("catboost", {"learning_rate": 0.04, "num_rounds": 5000}),
    ("xgboost", {"max_leaves": 7}),
]
LARGE_VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("xgboost", {"column_fraction": 1.0, "l2": 0.1}),
    ("lightgbm", {"max_leaves": 127, "l2": 0.0}),
    ("lightgbm", SLOW),
    ("xgboost", SLOW),
    ("xgboost", {"max_leaves": 15}),
    ("catboost", {"max_leaves": 256}),
]
HUGE_VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("lightgbm", {"max_leaves": 255, "l2": 0.0}),
    ("xgboost", {"max_leaves": 64, "column_fraction": 1.0}),
    ("lightgbm", SLOW),
    ("xgboost", SLOW),
    ("lightgbm", {"max_leaves": 31}),
    ("catboost", {"max_leaves": 64}),
]
"""Further members, trained in this order if a time limit leaves time: the library, and the settings that differ from those
above. Each has another seed."""
BY_SIZE: tuple[tuple[float, dict[str, dict[str, Any]], list[tuple[str, dict[str, Any]]], int], ...] = (
    (FEW_ROWS, SMALL, SMALL_VARIANTS, 0),
    (MANY_ROWS, LARGE, LARGE_VARIANTS, 1),
    (math.inf, HUGE, HUGE_VARIANTS, 1),
)
"""For tables with fewer rows than the first value: the members, their variants, and the number of variants that are trained
before the network; see CONTRIBUTING.md."""
COMMON: dict[str, Any] = {
    "min_leaf_weight": 1.0,
    "row_fraction": 0.8,
    "learning_rate": 0.05,
    "num_rounds": 2000,
    "early_stopping_rounds": 50,
}
LEAST_LEAVES = 10
"""The number of leaves that `min_leaf_weight` must allow with two classes or in a ranking. With few rows of a class or few
groups it is lower than the settings say: with 6 of 3,000 rows, XGBoost could not make a split with 2, so all rows had one
probability. The out-of-fold log loss of two generated tables is .0069 and .0117 instead of .0144; with 20 and 20 rows .29
and .38 instead of .37 and .37. NDCG@10 of XGBoost and LightGBM, 3 groups of 30 rows: .92 and .94 instead of .83 and .70."""
SHARES = {"lightgbm": 3.0, "catboost": 1.5, "xgboost": 1.5, "extra_trees": 1.0}
"""The shares of the tree members in the remaining time."""
TABM_SHARE, TABM_SHARE_OF_MANY_CLASSES = 2.0, 6.0
"""The share of the network. From `MANY_CLASSES` classes on it is larger, and the network is trained before CatBoost and
XGBoost, which need a tree per class. On the table letter (26 classes) the out-of-fold loss of the network is 0.120 after
18 s, that of XGBoost 0.252 after 7 s, and that of CatBoost 0.698 after 7 s."""
CORES_LIKE_A_GPU, CORES_PER_FEATURE, CORES_FOR_MANY_CLASSES = 0.7, 1 / 80, 1.3
"""The number of CPU cores that train the network as fast as an H200: a constant, a number for each feature, and one that is
added from `MANY_CLASSES` classes on. A step on one core takes 23, 34, 67 and 218 ms for 20, 60, 200 and 750 features, and
48 ms for the table letter; on the GPU it takes 20 to 25 ms (`make bench-gpu`)."""
LEAST_S_PER_FEATURE = {
    "linear": 1.2e-4, "lightgbm": 1.5e-4, "xgboost": 1.9e-4, "extra_trees": 1e-4, "catboost": 3.3e-4, "tabm": 3.2e-4,
}  # fmt: skip
"""Seconds per feature and copy of the least training: bins, one tree or step, and predictions of the rows that the copy
holds out. Eight copies on 120 rows of 20,000 features took 18, 24, 29, 51 and 49 s with two threads."""
LEAST_S_PER_OUTPUT = 2.5e-5
"""Seconds per row and class. With less time XGBoost and CatBoost have too few trees to get a weight (letter: 10 s)."""
RIDGE_ROWS, FORWARD_RIDGE_ROWS = 1_000, 200
"""For a regression with fewer rows, weights below 0 are not considered; the second number is for folds forward in time. With
49 rows in time, weights of −6.9 and −3.6 were fitted to the last blocks, and the error on later rows was twice that of equal
weights."""
SQUARED_ERROR = {"objective": "regression"}
WITH_SQUARED_ERROR = {
    "ranking": ("linear", "catboost", "extra_trees"),
    ABSOLUTE_ERROR: ("linear", "catboost", "xgboost", "extra_trees"),
}
"""By name of the task's loss, the libraries that minimise the squared error instead. In a ranking they predict the relevance
of each row by itself. With the absolute error, members that minimise different errors are better together; see
CONTRIBUTING.md."""


def plan(manifest: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """The members, in order of their gain per second."""
    num_rows, num_classes = manifest["splits"]["train"]["rows"], len(manifest["task"].get("classes") or ())
    _, settings, variants, num_early = next(size for size in BY_SIZE if num_rows < size[0])
    least_fraction = FEATURES_OF_A_TREE / len(manifest["features"])
    cv = CrossValidation.from_manifest(manifest)
    # A refit also trains on the rows of early stopping. If these are only a part of a fold, it is not worth its time
    regrow = cv is None or cv.stop_share == 1
    common = {**COMMON, "regrow": regrow}
    most_weight = _most_leaf_weight(manifest["task"]["kind"], manifest["splits"]["train"])
    with_squared_error = WITH_SQUARED_ERROR.get(task_of(manifest).loss, ())
    num_copies = cv.num_folds if cv else 1
    num_columns = len(manifest["features"]) * num_copies
    least_s = {library: per_feature * num_columns for library, per_feature in LEAST_S_PER_FEATURE.items()}
    planned = []
    work, is_wide = _linear_work(manifest), num_rows < len(manifest["features"])
    if work <= (MOST_WIDE_LINEAR_WORK if is_wide else MOST_LINEAR_WORK):
        linear = {"library": "linear", "regrow": regrow, **(SQUARED_ERROR if "linear" in with_squared_error else {})}
        needed_s = LINEAR_S_PER_OPERATION * work * num_copies if work > MOST_LINEAR_WORK else 0.0
        least = max(2.0, least_s["linear"], needed_s)
        share = WIDE_LINEAR_SHARE if needed_s else LINEAR_SHARE
        planned.append(PlannedMember(name="linear", kind="trees", settings=linear, share=share, least_seconds=least))
    least_seconds = max(2.0, LEAST_S_PER_OUTPUT * num_rows * max(1, num_classes))
    planned += [
        PlannedMember(
            name=library,
            kind="trees",
            settings={
                **_within({"library": library, **common, **tuned}, least_fraction, most_weight),
                **(SQUARED_ERROR if library in with_squared_error else {}),
            },
            share=SHARES[library],
            least_seconds=max(2.0 if library == "lightgbm" else least_seconds, least_s[library]),
        )
        for library, tuned in settings.items()
    ]
    if num_rows < FEW_ROWS and num_rows * max(1, num_classes) <= FOREST_OUTPUTS:
        after_lightgbm = [member.name for member in planned].index("lightgbm") + 1
        settings_of_all = {"regrow": regrow, **(SQUARED_ERROR if "extra_trees" in with_squared_error else {})}
        planned[after_lightgbm:after_lightgbm] = _forests(manifest, settings_of_all, max(2.0, least_s["extra_trees"]))
    by_name, numbers = {member.name: member for member in planned}, dict.fromkeys(SHARES, 1)
    for library, changes in variants:
        numbers[library] += 1
        planned.append(_variant(by_name[library], numbers[library], _within(changes, least_fraction, most_weight)))
    has_many_classes = num_classes >= MANY_CLASSES
    share = TABM_SHARE_OF_MANY_CLASSES if has_many_classes else TABM_SHARE
    cores = CORES_LIKE_A_GPU + CORES_PER_FEATURE * len(manifest["features"]) + CORES_FOR_MANY_CLASSES * has_many_classes
    least = max(15.0, least_s["tabm"])
    tabm = PlannedMember(name="tabm", kind="neural", share=share, least_seconds=least, cores_as_fast_as_gpu=cores)
    position = list(by_name).index("lightgbm") + 1 if has_many_classes else len(by_name) + num_early
    planned.insert(position, tabm)
    return planned


def _forests(manifest: dict[str, Any], settings: dict[str, Any], least_seconds: float) -> list[PlannedMember]:
    """Extremely randomised trees: for classes, one member whose splits draw few features, and one whose splits use all."""
    num_rows, num_features = manifest["splits"]["train"]["rows"], len(manifest["features"])
    has_classes = manifest["task"]["kind"] in ("binary", "multiclass")
    num_classes = max(1, len(manifest["task"].get("classes") or ()))
    fewest, most = FOREST_TREES
    settings = {
        "library": "extra_trees",
        "num_rounds": max(fewest, min(most, FOREST_LEAVES // (num_rows * num_classes))),
        "min_leaf_weight": 1.0 if has_classes else 2.0,
        "column_fraction": num_features**-0.5 if has_classes else min(1.0, FOREST_FEATURES / num_features),
        **settings,
    }
    member = PlannedMember(
        name="extra_trees", kind="trees", settings=settings, share=SHARES["extra_trees"], least_seconds=least_seconds
    )
    if not has_classes or num_features > FOREST_FEATURES:
        return [member]
    with_all_features = dataclasses.replace(
        member,
        name="extra_trees_2",
        settings={**settings, "column_fraction": 1.0},
        variant_of=member.name,
        relative_seconds=max(1.0, num_features**0.5 / 2),  # 2.3 with 22 features
        seed_offset=2000,
    )
    return [member, with_all_features]


def _within(settings: dict[str, Any], least_fraction: float, most_weight: float) -> dict[str, Any]:
    """The settings of a tree member; a `column_fraction` among them is raised to `least_fraction`, but at most to 1, and a
    `min_leaf_weight` is lowered to `most_weight`."""
    settings = dict(settings)
    if "column_fraction" in settings:
        settings["column_fraction"] = min(1.0, max(settings["column_fraction"], least_fraction))
    if "min_leaf_weight" in settings:
        settings["min_leaf_weight"] = min(settings["min_leaf_weight"], most_weight)
    return settings


def _most_leaf_weight(kind: str, train: dict[str, Any]) -> float:
    """The sum of second derivatives before the first tree, which is about the number of groups in a ranking, divided by
    `LEAST_LEAVES`; unlimited with several classes or a number to predict."""
    if kind == "ranking" and "groups" in train:
        return train["groups"] / LEAST_LEAVES
    if "positives" not in train:
        return math.inf
    return train["positives"] * (1 - train["positives"] / train["rows"]) / LEAST_LEAVES


def _variant(member: PlannedMember, number: int, changes: dict[str, Any]) -> PlannedMember:
    settings = {**member.settings, **changes}
    return dataclasses.replace(
        member,
        name=f"{member.name}_{number}",
        settings=settings,
        variant_of=member.name,
        relative_seconds=member.settings["learning_rate"] / settings["learning_rate"],  # slower learning, more trees
        seed_offset=1000 * number,
    )


def combining(manifest: dict[str, Any]) -> dict[str, str]:
    """The combiners and calibrators to compare, the default first: another one is chosen only if its cross-fitted loss is
    clearly lower (combine/selection.py).

    From `RIDGE_ROWS` rows on, a regression may have weights below 0, which help where all members deviate from the target
    in the same way; not with folds of whole groups (`only_safe` of `combine.fit_cross_fitted`). With folds forward in time,
    any combiner may be chosen for a regression from `FORWARD_RIDGE_ROWS` rows on, by its loss on the blocks after those it
    was fitted on. Compared with simplex, the loss of this choice on the last quarter of nine tables in time was lower on
    four and higher on five: −60, −13, −2.4, −0.1, and +0.3 to +3.6 %. With these folds, probabilities of classes are not
    calibrated, since the frequency of a class changes from block to block.
    """
    cv, kind = CrossValidation.from_manifest(manifest), manifest["task"]["kind"]
    calibrations = {"binary": "platt,none", "multiclass": "temperature,none"}
    is_forward = cv is not None and cv.scheme == "forward"
    if kind == "regression":
        num_rows = manifest["splits"]["train"]["rows"]
        if is_forward:
            return {"combiner": "auto" if num_rows >= FORWARD_RIDGE_ROWS else "equal,simplex"}
        may_be_negative = num_rows >= RIDGE_ROWS and (cv is None or cv.scheme != "groups")
        return {"combiner": "simplex,ridge" if may_be_negative else "simplex"}
    if kind not in calibrations:
        return {"combiner": "simplex"}
    return {"combiner": "simplex", "calibration": "none" if is_forward else calibrations[kind]}


def _linear_work(manifest: dict[str, Any]) -> float:
    """The approximate number of operations to fit the candidates of a copy of the linear model (trees/linear.py)."""
    num_rows, task = manifest["splits"]["train"]["rows"], manifest["task"]
    num_columns = sum(min(feature.get("categories") or 2, 100) for feature in manifest["features"])
    if task["kind"] in ("regression", "ranking"):
        if num_rows < num_columns:  # the products of the rows, and their eigenvectors
            return num_rows**2 * (num_columns + 9.0 * num_rows)
        return 10.0 * num_rows * num_columns**2
    num_weights = min(num_rows, num_columns) * max(1, len(task.get("classes") or ()))
    return 18.0 * num_rows * num_weights * min(5 * num_weights, 200)  # Newton's method, or the steps of L-BFGS
