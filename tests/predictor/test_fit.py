"""What is written of an ensemble, and what it depends on."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from prediction_files import SPLITS, change, fit

from ensemble import folders, predictions
from ensemble.combine import weights
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import scoring
from ensemble.recipes.hot_sellers import baselines
from ensemble.task import Task


def test_the_ensemble_leaves_its_files(files: Path, prepared: Path, tmp_path: Path) -> None:
    """A later stage would find something missing, or a score that is not in the file."""
    scores = fit(files, prepared, tmp_path / "ensemble")
    names = {
        "ensemble.json",
        "scores.json",
        "like.json",
        "test.parquet",
        "forecast.parquet",
        "forecast.csv",
        "README.md",
        "manifest.json",
    }
    assert {path.name for path in (tmp_path / "ensemble").iterdir()} == names
    folders.verify(tmp_path / "ensemble")
    assert json.loads((tmp_path / "ensemble/scores.json").read_text()) == scores
    assert scores["members"] == ["clear", "vague"]
    assert set(scores["scores"]) == {"ensemble", "clear", "vague", "momentum", "base rate"}
    assert set(scores["weights"]) == {"clear", "vague"}
    value = {name: facts["average_precision"]["value"] for name, facts in scores["scores"].items()}
    assert value["ensemble"] > value["vague"] > value["base rate"]
    assert value["base rate"] == pytest.approx(scores["base_rate"])
    test = predictions.read(tmp_path / "ensemble/test.parquet")
    assert (test.member, test.split) == ("ensemble", "test")
    assert np.array_equal(np.sort(test.row_id), np.sort(baselines.predict(prepared, "test")["row_id"]))


def test_members_are_named_by_their_real_folder(files: Path, prepared: Path, tmp_path: Path) -> None:
    """With an output folder behind a symbolic link, a copy of it would lack its members."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    for file in Path(shutil.copytree(files, tmp_path / "runs" / "predictions")).glob("clear.*"):
        change(file, config={"kind": "xgboost", "folder": str(tmp_path / "runs" / "members" / "clear")})
    fit(tmp_path / "runs" / "predictions", prepared, tmp_path / "runs" / "ensemble")
    description = folders.read_json(tmp_path / "runs" / "ensemble" / "ensemble.json")
    assert description["members"]["clear"]["folder"] == "../members/clear"


def test_the_order_of_members_does_not_matter(files: Path, prepared: Path, tmp_path: Path) -> None:
    """The forecast would depend on how the command was typed."""
    result = []
    for number, members in enumerate([("clear", "vague", "momentum"), ("momentum", "vague", "clear"), ()]):
        scores = fit(files, prepared, tmp_path / str(number), members=members)
        result.append((scores, (tmp_path / str(number) / "forecast.csv").read_bytes()))
    assert result[0] == result[1] == result[2]


def test_what_each_member_adds_is_written(files: Path, prepared: Path, tmp_path: Path) -> None:
    """The user would get weights without the scores by which to judge a member, or weeks and categories would not add up."""
    scores = fit(files, prepared, tmp_path / "ensemble", combiner="greedy")
    description = folders.read_json(tmp_path / "ensemble" / "ensemble.json")
    assert description["combiner"]["method"] == scores["combiner"]["method"] == "greedy"
    assert {*weights.COMBINERS["binary"], "auto"} == set(scores["combiner"]["cross_fitted"])
    few = fit(files, prepared, tmp_path / "few", combiner="greedy", compare=False)
    assert set(few["combiner"]["cross_fitted"]) == {"equal", "best_member", "greedy", "auto"}
    assert few["weights"] == scores["weights"]
    result = description["diversity"]
    for part in ("by_week", "by_category"):
        assert sum(facts["rows"] for facts in result[part].values()) == scores["rows"]
    assert set(result["by_category"]) - {"without category"} < set(folders.read_manifest(prepared)["categories"])
    assert len(result["by_week"]) == scores["groups"]
    assert set(result["drift"]["log_loss"]) == {"ensemble", "clear", "vague"}
    assert result["without"]["clear"]["log_loss"] > result["without"]["vague"]["log_loss"]
    assert result["weights"]["clear"]["low"] > result["weights"]["vague"]["high"]


def test_the_same_share_of_each_week_is_expected_to_be_hot(files: Path, prepared: Path, tmp_path: Path) -> None:
    """The probabilities of a week would have the level of members that were trained, and scaled, on other weeks."""
    fit(files, prepared, tmp_path / "ensemble")
    test = predictions.read(tmp_path / "ensemble/test.parquet")
    share = predictions.read(files / "clear.blend.parquet").target.mean()
    means = [test.prediction[test.group == week].mean() for week in np.unique(test.group)]
    assert len(means) > 2
    assert means == pytest.approx([share] * len(means))


def test_a_foreign_member_of_any_scale_joins(copied: Path, prepared: Path, tmp_path: Path) -> None:
    """A model that ranks by margins would be refused, or its margins would be shown as probabilities."""
    for split in SPLITS:
        path = copied / f"vague.{split}.parquet"
        margin = 1000 * pq.read_table(path)["prediction"].to_numpy() - 300
        change(path, prediction=margin, output="score", config={})
    scores = fit(copied, prepared, tmp_path / "ensemble")
    assert scores["scores"]["vague"]["log_loss"]["value"] < scores["scores"]["base rate"]["log_loss"]["value"]
    shown = pq.read_table(tmp_path / "ensemble" / "forecast.parquet")["vague"].to_numpy()
    assert 0 < shown.min() < shown.max() < 1
    change(copied / "vague.test.parquet", output="probability")
    with pytest.raises(UserError, match="member vague predicts a probability on test, and a score on another split"):
        fit(copied, prepared, tmp_path / "again")


def test_a_test_split_changes_nothing_that_is_fitted(copied: Path, prepared: Path, tmp_path: Path) -> None:
    """Weights, or the choice between them, would be tuned to the rows that the score is reported on."""
    fit(copied, prepared, tmp_path / "before")
    for path in copied.glob("*.test.parquet"):
        table = pq.read_table(path)
        change(path, prediction=1 - table["prediction"].to_numpy() ** 2)
    fit(copied, prepared, tmp_path / "after")
    before, after = (folders.read_json(tmp_path / name / "ensemble.json") for name in ("before", "after"))
    assert before["combiner"] == after["combiner"]
    for part in ("error_correlation", "without", "weights"):
        assert before["diversity"][part] == after["diversity"][part]
    assert before["diversity"]["by_week"] != after["diversity"]["by_week"]


def test_only_the_named_members_take_part(files: Path, prepared: Path, tmp_path: Path) -> None:
    """members=[…] would be ignored."""
    scores = fit(files, prepared, tmp_path / "ensemble", members=("vague",))
    assert scores["weights"] == {"vague": 1.0}
    assert "clear" not in pq.read_table(tmp_path / "ensemble/forecast.parquet").column_names


def test_a_perfect_member_gives_a_warning(
    copied: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A member that has seen the target would take all weight, and nobody would look."""
    assert fit(copied, prepared, tmp_path / "sound")["warnings"] == []
    assert "warning" not in capsys.readouterr().err
    for split in SPLITS:
        path = copied / f"vague.{split}.parquet"
        member = predictions.read(path)
        order = np.nan_to_num(member.target) + member.prediction
        change(path, prediction=order / 2)
    scores = fit(copied, prepared, tmp_path / "leaky")
    (sentence,) = scores["warnings"]
    assert sentence.startswith(
        "member vague is right on nearly all rows of blend (roc_auc 1.000000): look for a feature that"
    )
    assert f"warning: {sentence}" in capsys.readouterr().err
    assert folders.read_json(tmp_path / "leaky/ensemble.json")["warnings"] == [sentence]


def test_rows_of_little_weight_make_no_leak() -> None:
    """The variance around a mean without weights would make any member seem perfect."""
    target, noise = np.random.default_rng(0).normal(size=(2, 200))
    weight = np.where(np.arange(200) % 2, 1, 1e-6)
    target += np.where(weight < 1, 1000, 0)
    ids = np.arange(200)
    blend = Predictions(
        row_id=ids, target=target, prediction=target + noise, group=ids, cluster=ids, weight=weight,
        recipe="r", split="blend", member="m", fingerprint="f",
    )  # fmt: skip
    task = Task(kind="regression", target="y", metric="root_mean_squared_error", group="group", cluster="cluster")
    assert scoring.warnings_of_leaks(task, blend, {"m": blend.prediction}) == []
    assert len(scoring.warnings_of_leaks(task, blend, {"m": target})) == 1


def test_a_score_that_any_prediction_has_is_no_leak() -> None:
    """Members would be suspected where groups have one row each, or where nearly all rows are of one class."""
    ids, generator = np.arange(30_000), np.random.default_rng(0)
    columns: dict[str, Any] = {"row_id": ids, "group": ids, "cluster": ids, "recipe": "r", "split": "blend", "member": "m"}
    rare = (ids < 2).astype(float)
    for kind, metric, target, prediction in (
        ("ranking", "ndcg_at_10", ids % 3, generator.normal(size=len(ids))),
        ("multiclass", "multiclass_log_loss", rare, np.tile([0.9, 0.1], (len(ids), 1))),
    ):
        task = Task(kind=kind, target="y", metric=metric, group="group", cluster="cluster", classes=("a", "b"))
        blend = Predictions(target=target.astype(float), prediction=prediction, fingerprint="f", **columns)
        assert scoring.warnings_of_leaks(task, blend, {"m": prediction}) == []
    assert len(scoring.warnings_of_leaks(task, blend, {"m": np.eye(2)[rare.astype(int)]})) == 1


@pytest.mark.parametrize(
    ("cluster", "positives", "expected"),
    [
        (range(500), 3, ["only 3 of the 500 scored rows are positive: the intervals of the scores are too narrow"]),
        (range(500), 499, ["only 1 of the 500 scored rows is negative: the intervals of the scores are too narrow"]),
        (np.arange(500) // 10, 30, [
            "the positive rows are in only 3 of the 50 clusters that the bootstrap draws: the intervals of the scores are "
            "too narrow"
        ]),
        (range(500), 10, []),
        (range(500), 0, []),  # no score is defined
    ],
)  # fmt: skip
def test_few_positives_give_a_warning(cluster: Any, positives: int, expected: list[str]) -> None:
    """A ROC-AUC of .98 to 1.00 would seem certain, although all of it depends on three rows."""
    ids = np.arange(500)
    rows = Predictions(
        row_id=ids, target=(ids < positives).astype(float), prediction=np.full(500, 0.5), group=ids,
        cluster=np.array(cluster), recipe="r", split="test", member="m", fingerprint="f",
    )  # fmt: skip
    task = Task(kind="binary", target="y", metric="roc_auc", group="group", cluster="cluster")
    assert scoring.warnings_of_few(task, rows) == expected
    assert scoring.warnings_of_few(dataclasses.replace(task, kind="regression"), rows) == []
