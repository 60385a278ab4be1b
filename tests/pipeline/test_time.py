"""The time that a fit takes, and the members that it plans."""

import dataclasses
import importlib.util
import types
from pathlib import Path
from typing import Any

import flat_data
import numpy as np
import pytest
from fits import configured, planned

from ensemble import folders
from ensemble.errors import UserError
from ensemble.pipeline import plan as plans
from ensemble.pipeline import run
from ensemble.pipeline.budget import Budget
from ensemble.trees import train
from ensemble.trees.boosting import CannotLearn

COLUMNS = {"target": "y", "metric": "", "group": "group", "cluster": "cluster"}


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Recorder:
    """Stands for the training of members: notes what each was given, and lets time pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: dict[str, float]):
        self.seconds_of: dict[str, float] = {}
        self.clock, self.finished = Clock(), []
        self.takes, self.refused = takes, set[str]()

        def train_trees(member: Any, config: Any, threads: int, seconds: float, *rest: Any) -> None:
            self.seconds_of[member.name] = seconds
            if member.name in self.refused:
                raise CannotLearn(member.name)
            takes = self.takes.get(member.variant_of or member.name, 0)
            self.clock.now += takes
            summary = Path(config.out) / "members" / member.name / "summary.json"
            summary.parent.mkdir(parents=True)
            folders.write_json(summary, {"seconds": takes})

        def finish(fit: run.Fit, *rest: Any) -> list[Any]:
            self.finished = [member.name for member in fit.trained]
            return []

        monkeypatch.setattr(run, "train_trees", train_trees)
        monkeypatch.setattr(run, "finish", finish)
        monkeypatch.setattr(run, "FINISH_PER_MEMBER_S", 0.0)

    def fit(self, table: Path, out: Path, limit: float, passed: float = 0.0, **settings: Any) -> None:
        config = configured(table, out, time_limit=limit, **settings)
        run.fit(config, "table", False, Budget(limit, self.clock, passed))


def test_the_time_is_divided_among_the_members(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first member would get all of the time, or the last one less than is left."""
    finish = run.FINISH_S + run.FINISH_PER_ROW_S * 100
    recorder = Recorder(monkeypatch, {"lightgbm": 20.0, "xgboost": 5.0})
    monkeypatch.setattr(run, "plan", lambda manifest, threads: planned("lightgbm", "xgboost", "xgboost-2"))
    recorder.fit(table, tmp_path / "a", 70.0 + run.SLOWEST * finish, passed=10.0)
    assert recorder.seconds_of == pytest.approx({"lightgbm": 60 / 3, "xgboost": 40 / 2, "xgboost-2": 35.0})
    assert recorder.finished == ["lightgbm", "xgboost", "xgboost-2"]
    slow = dataclasses.replace(planned("xgboost-2")[0], least_seconds=25.0)  # 20 s of 60 would be too little for it
    monkeypatch.setattr(run, "plan", lambda manifest, threads: [*planned("lightgbm", "xgboost"), slow])
    recorder.fit(table, tmp_path / "c", 60.0 + finish)
    assert recorder.seconds_of == pytest.approx({"lightgbm": 60 / 2, "xgboost": 40.0, "xgboost-2": 35.0})
    monkeypatch.setattr(run, "plan", lambda manifest, threads: planned("lightgbm", "xgboost", "xgboost-2"))
    recorder.fit(table, tmp_path / "b", 0.0)
    assert set(recorder.seconds_of.values()) == {0.0}  # without a limit


@pytest.mark.parametrize(("limit", "trained"), [(30.0, ["lightgbm"]), (1.0, ["lightgbm"]), (90.0, ["lightgbm", "xgboost"])])
def test_members_are_left_out_when_time_is_short(
    limit: float, trained: list[str], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A fit would exceed its limit, or train no member."""
    recorder = Recorder(monkeypatch, {"lightgbm": 27.0})
    recorder.fit(table, tmp_path / "out", limit)
    assert recorder.finished == trained
    assert ("no time is left for xgboost" in capsys.readouterr().err) == (len(trained) == 1)
    assert all(seconds >= run.MIN_TRAINING_S for seconds in recorder.seconds_of.values())  # 0 would mean: no limit


@pytest.mark.parametrize(("num_values", "prepared_s", "factor"), [(440, 0.5, 1.0), (440, 3.0, 2.0), (5_000_000, 6.0, 2.0)])
def test_a_slow_machine_has_more_time_to_finish(num_values: int, prepared_s: float, factor: float) -> None:
    """A fit on a loaded machine would exceed its limit, or one on a fast machine would leave seconds unused."""
    assert run.slowness_of(num_values, prepared_s) == pytest.approx(factor, rel=0.01)
    assert run.slowness_of(num_values, 100 * prepared_s) == run.SLOWEST


def test_the_rows_that_are_combined_take_time_at_the_end(tmp_path: Path) -> None:
    """A fit of hot_sellers, or of a large table, would reserve time to combine its training rows, which are not combined."""
    splits = {"train": {"rows": 50_000}, "validation": {"rows": 5_000}, "blend": {"rows": 300}, "test": {"rows": 200}}
    rows, cv = flat_data.folded(flat_data.columns(1000), 5)
    holdout = {**cv, "scheme": "holdout", "num_folds": 1, "stop_share": 0.5}
    rows["fold"] = np.r_[np.zeros(500, np.int64), np.ones(250, np.int64), np.full(250, -1)]
    data = flat_data.write(tmp_path / "data", {"train": rows}, cross_validation=holdout)
    manifest = folders.read_manifest(data)
    seconds = run.finish_seconds(manifest, data)
    assert seconds == run.finish_seconds({"splits": splits}, data)
    assert seconds[1] == 500 * run.FINISH_PER_MEMBER_S > 0
    manifest["task"]["classes"] = ["a", "b", "c"]
    assert run.finish_seconds(manifest, data) > seconds
    manifest["task"]["classes"], manifest["splits"]["test"] = [], {"rows": 200}
    splits["test"]["rows"] += 200
    assert run.finish_seconds(manifest, data) == run.finish_seconds({"splits": splits}, data) > seconds


def test_a_share_that_is_too_small_is_left_to_later_members(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of the time would be spent on a member with too few trees to get a weight."""
    recorder = Recorder(monkeypatch, {"lightgbm": 30.0})
    first, slow, last = planned("lightgbm", "xgboost", "xgboost-2")
    slow = dataclasses.replace(slow, least_seconds=40.0)
    monkeypatch.setattr(run, "plan", lambda manifest, threads: [first, slow, last])
    finish = run.FINISH_S + run.FINISH_PER_ROW_S * 100
    recorder.fit(table, tmp_path / "a", 90.0 + finish)
    assert recorder.seconds_of == pytest.approx({"lightgbm": 90 / 2, "xgboost-2": 60.0})  # 30 s would be too little
    monkeypatch.setattr(run, "plan", lambda manifest, threads: [first, slow])
    recorder.seconds_of.clear()
    recorder.fit(table, tmp_path / "b", 90.0 + finish)
    assert recorder.seconds_of == pytest.approx({"lightgbm": 90 / 2, "xgboost": 60.0})


def test_each_member_takes_time_at_the_end(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table would have one member, since time to combine five was reserved before the first was trained."""
    recorder = Recorder(monkeypatch, {"lightgbm": 20.0, "xgboost": 5.0})
    monkeypatch.setattr(run, "FINISH_PER_MEMBER_S", 0.03)  # 3 s for 100 rows
    monkeypatch.setattr(run, "plan", lambda manifest, threads: planned("lightgbm", "xgboost"))
    recorder.fit(table, tmp_path / "out", 63.0 + run.FINISH_S + run.FINISH_PER_ROW_S * 100)
    assert recorder.seconds_of == pytest.approx({"lightgbm": 60 / 2, "xgboost": 63 - 20 - 2 * 3})


def with_variants(manifest: dict[str, Any], threads: int) -> list[plans.PlannedMember]:
    members = planned("lightgbm", "xgboost")
    originals = {member.name: member for member in members}
    names = ("lightgbm_2", "xgboost_2", "lightgbm_3")
    variants = [dataclasses.replace(originals[name[:-2]], name=name, variant_of=name[:-2], seed_offset=1) for name in names]
    return [*members, *variants[:2], dataclasses.replace(variants[2], relative_seconds=1.5)]


@pytest.mark.parametrize(
    ("limit", "refused", "trained"),
    [
        (103.0, "", ["lightgbm", "xgboost", "lightgbm_2", "xgboost_2", "lightgbm_3"]),
        (80.0, "", ["lightgbm", "xgboost", "lightgbm_2", "lightgbm_3"]),  # another 30 s may exceed the limit
        (53.0, "", ["lightgbm", "xgboost"]),
        (100.0, "xgboost", ["lightgbm", "lightgbm_2", "lightgbm_3"]),
        (69.0, "", ["lightgbm", "xgboost", "lightgbm_2"]),  # lightgbm_3 is expected to take 15 s
        (0.0, "", ["lightgbm", "xgboost"]),
    ],
)
def test_variants_use_the_time_that_is_left(
    limit: float, refused: str, trained: list[str], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time would be left unused, a fit would exceed its limit, or one without a limit would depend on the machine."""
    recorder = Recorder(monkeypatch, {"lightgbm": 10.0, "xgboost": 30.0})
    recorder.refused = {refused}
    monkeypatch.setattr(run, "plan", with_variants)
    finish = run.FINISH_S + run.FINISH_PER_ROW_S * 100
    recorder.fit(table, tmp_path / "out", limit and limit + finish)
    assert recorder.finished == trained
    assert recorder.seconds_of["lightgbm"] == pytest.approx(limit / 2)  # variants have no share


def test_a_variant_without_a_time_limit_is_refused(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user would look for a reason in the data, which the error blames."""
    monkeypatch.setattr(run, "plan", with_variants)
    names = ("lightgbm", "lightgbm_2")
    with pytest.raises(
        UserError, match=r"^time_limit=0, but members=.* names 'lightgbm_2', a variant, which is only trained"
    ):
        run.chosen_members({}, configured(table, tmp_path, members=names), 1)
    assert len(run.chosen_members({}, configured(table, tmp_path, members=names, time_limit=9.0), 1)) == 2


def test_a_variant_has_a_seed_of_its_own(table: Path, tmp_path: Path) -> None:
    """A variant with equal settings would be identical to its member."""
    config = configured(table, tmp_path, seed=3)
    seeds = [run.trees_config(member, config, 1).seed for member in with_variants({}, 1)]
    assert seeds == [3, 3, 4, 4, 4]


def test_a_member_ends_in_its_time(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The members would not keep their shares of the limit."""
    monkeypatch.setattr(run, "plan", lambda manifest, threads: planned("xgboost"))
    seconds_of: list[float] = []
    original = train.train

    def stopped(config: Any, resume: str) -> dict[str, Any]:
        import dataclasses

        seconds_of.append(config.max_seconds)
        return original(dataclasses.replace(config, num_rounds=4000, max_seconds=1e-9), resume)

    monkeypatch.setattr(train, "train", stopped)
    config = configured(table, tmp_path / "out", time_limit=50.0)
    run.fit(config, "table", False, Budget(50.0, Clock(), 0.0))
    assert seconds_of == [pytest.approx(50 - run.FINISH_S - (run.FINISH_PER_ROW_S + run.FINISH_PER_MEMBER_S) * 100)]
    assert folders.read_json(tmp_path / "out/members/xgboost/summary.json")["trees"] <= 4


def test_the_budget_counts_from_the_start_of_the_process() -> None:
    """Imports would not count: a fit would exceed its limit by some seconds."""
    clock = Clock()
    budget = Budget(30.0, clock, passed=4.0)
    clock.now += 10
    assert (budget.passed(), budget.left()) == (14.0, 16.0)
    clock.now += 20
    assert budget.left() == -4
    assert Budget(0.0, clock).left() == float("inf")
    import time

    assert Budget(9.0).passed() == pytest.approx(time.time() - run_began(), abs=2)


def run_began() -> float:
    import psutil

    return psutil.Process().create_time()


# ------------------------------------------------------------------------------------------------ the plan


def test_libraries_that_are_absent_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit would end at a package that is optional."""
    manifest = {
        "recipe": "table",
        "task": {**COLUMNS, "kind": "binary"},
        "splits": {"train": {"rows": 500}},
        "features": [{}],
    }
    names = {member.name for member in plans.plan(manifest, 2) if member.kind == "trees"}
    assert {"lightgbm", "xgboost"} <= names
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "catboost" else find(name))
    assert "catboost" not in {member.name for member in plans.plan(manifest, 2)}
    ranking = {**manifest, "task": {**COLUMNS, "kind": "ranking"}}
    assert "catboost" not in {member.name for member in plans.plan(ranking, 2)}


def of_classes(classes: str, num_rows: int = 500) -> list[plans.PlannedMember]:
    task = {**COLUMNS, "kind": "multiclass", "classes": list(classes)}
    manifest = {"recipe": "table", "task": task, "splits": {"train": {"rows": num_rows}}, "features": [{}]}
    return [member for member in plans.plan(manifest, 2) if not member.variant_of]


def test_the_network_has_more_time_with_many_classes() -> None:
    """Short fits would have CatBoost and XGBoost with too few trees in place of the network."""
    few, many = of_classes("abcdefg"), of_classes("abcdefgh")
    assert [member.name for member in few] == ["linear", "lightgbm", "extra_trees", "catboost", "xgboost", "tabm"]
    assert [member.name for member in many] == ["linear", "lightgbm", "tabm", "extra_trees", "catboost", "xgboost"]
    assert many[2].share == 3 * few[-1].share


def test_trees_of_many_classes_need_more_seconds() -> None:
    """Time would be spent on a member with too few trees to get a weight, as on CatBoost in 7 s for the table letter."""
    least_s = {member.name: member.least_seconds for member in of_classes("abcdefghijklmnopqrstuvwxyz", num_rows=15_000)}
    assert (least_s["lightgbm"], least_s["catboost"], least_s["xgboost"]) == (2.0, pytest.approx(9.75), pytest.approx(9.75))
    assert {member.least_seconds for member in of_classes("abcdefgh") if member.kind == "trees"} == {2.0}


def test_the_settings_of_planned_members_exist(tmp_path: Path) -> None:
    """A fit would end at a setting that no library takes, after the data are prepared."""
    from ensemble import configuration
    from ensemble.trees.settings import TreesConfig

    for kind in ("binary", "multiclass", "regression", "ranking"):
        for rows in (200, 50_000):
            manifest = {
                "recipe": "table",
                "task": {**COLUMNS, "kind": kind},
                "splits": {"train": {"rows": rows}},
                "features": [{}] * 5,
            }
            members = plans.plan(manifest, 2)
            names = [member.name for member in members]
            assert len(set(names)) == len(names)
            assert {member.variant_of for member in members} <= {"", *names}
            for member in members:
                if member.kind == "trees":
                    settings = {**member.settings, "data": "d", "out": "o"}
                    train.check(configuration.from_dict(TreesConfig, settings))


def test_a_variant_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant would never be trained, since its time is planned by that of its member."""
    manifest = {
        "recipe": "table",
        "task": {**COLUMNS, "kind": "binary"},
        "splits": {"train": {"rows": 500}},
        "features": [{}],
    }

    monkeypatch.setattr(run, "plan", plans.plan)

    def names(*members: str) -> list[str]:
        config = types.SimpleNamespace(members=members, time_limit=60.0)
        return [member.name for member in run.chosen_members(manifest, config, 2)]

    with pytest.raises(UserError, match="names 'lightgbm_2' without 'lightgbm', of which it is a variant: name both"):
        names("lightgbm_2", "xgboost")
    assert names("lightgbm_2", "lightgbm") == ["lightgbm", "lightgbm_2"]
