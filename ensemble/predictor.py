"""The ensemble predictor: prediction files to a fitted ensemble, scores on the test split, and a ranked forecast.

    ensemble.json      weights, calibration, members and where they are, what each way to combine would have given, and how
                       alike the members are, what each adds, and where and when each fails
    scores.json        every metric of the ensemble, its members and the baselines on test, with bootstrap intervals
    test.parquet       the ensemble's own prediction file for test
    forecast.parquet   the ranked forecast, also as forecast.csv, if the data have rows to forecast (forecast.py)
    like.json          the manifest of the data, by which new raw reviews are prepared alike
    README.md          the model card

It joins files by row id and loads none of the members' libraries; to forecast from new reviews it runs scripts/predict.py
for each member, in a process of its own.
"""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import bag, card, combine, metrics, predictions
from ensemble.combine import diversity
from ensemble.combine.fitting import OUTPUTS_OF
from ensemble.combine.selection import AUTO, SHOWN
from ensemble.data import manifest
from ensemble.data.arrow import open_table
from ensemble.data.task import Task, task_of
from ensemble.errors import UserError
from ensemble.forecast import PRODUCTS, RESERVED, strongest_reasons, write_forecast
from ensemble.forecast import SPLIT as FORECAST
from ensemble.predictions import Predictions

ENSEMBLE = "ensemble"
BASE_RATE = "base rate"
FITTED_ON = ("blend", bag.OUT_OF_FOLD)
PREDICT_SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "predict.py"


def fit(
    folder: str | Path,
    data: str | Path,
    out: str | Path,
    members: tuple[str, ...] = (),
    num_draws: int = 200,
    seed: int = 0,
    overwrite: bool = False,
    combiner: str = AUTO,
    calibration: str = AUTO,
    on: str = "blend",
) -> dict[str, Any]:
    """Fit on blend, score on test, forecast; writes `out` and returns the scores, with what each way would have given.

    folder : prediction files, MEMBER.SPLIT.parquet. data : the prepared data they are of. members : names, all if empty.
    num_draws, seed : of the bootstrap over clusters. combiner, calibration : as for `combine.fit`. on : blend, or oof, the
    rows that a bag's copies predicted out of fold. Raises `UserError` before anything is written.
    """
    for name, value, least in (("num_draws", num_draws, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"{name}={value} is impossible: it must be at least {least}")
    if on not in FITTED_ON:
        raise UserError(f"on={on} is no split that weights can be fitted on: name {' or '.join(FITTED_ON)}")
    about = manifest.read_manifest(data)
    task = task_of(about)
    names = sorted(members) or _names(Path(folder), on)
    by_split = {
        split: [_read(Path(folder) / f"{name}.{split}.parquet", name, split, about["fingerprint"], data) for name in names]
        for split in (on, "test", FORECAST)
        if split != FORECAST or FORECAST in about["splits"]
    }
    aligned = {split: predictions.align(files) for split, files in by_split.items()}
    is_baseline = np.array([file.config.get("kind") == "baseline" for file in by_split[on]])
    member_names = [name for name, baseline in zip(names, is_baseline, strict=True) if not baseline]
    if not member_names:
        raise UserError(f"there is no member in {folder}, only baselines: train one and predict with it")

    blend, of_blend = aligned[on]
    test, of_test = aligned["test"]
    outputs = _outputs(by_split, member_names)
    ensemble = combine.fit(
        blend.target,
        of_blend[:, ~is_baseline],
        blend.group,
        member_names,
        kind=task.kind,
        outputs=outputs,
        combiner=combiner,
        calibration=calibration,
    )
    candidates = {ENSEMBLE: ensemble.predict(of_test[:, ~is_baseline], member_names, test.group)}
    for number in np.flatnonzero(~is_baseline):
        candidates[names[number]] = ensemble.probabilities(names[number], of_test[:, number])
    for number in np.flatnonzero(is_baseline):
        candidates[names[number]] = combine.momentum_prediction(
            blend.target, of_blend[:, number], blend.group, of_test[:, number], test.group
        )
    candidates[BASE_RATE] = combine.base_rate_prediction(blend.target, len(test.target), task.kind, len(task.classes))
    scores = _score(task, test, candidates, member_names, num_draws, seed)
    scores["fitted_on"] = on
    scores["weights"] = dict(zip(ensemble.member_names, ensemble.weights, strict=True))
    scores["combiner"] = {"method": ensemble.method, "cross_fitted": ensemble.cross_fitted}
    about_members = diversity.on_blend(
        ensemble, blend.target, of_blend[:, ~is_baseline], blend.group, blend.cluster, np.random.default_rng(seed)
    )
    if (Path(data) / PRODUCTS).exists():
        forecasts = {name: candidates[name] for name in (ENSEMBLE, *member_names)}
        about_members |= _where_and_when(task.kind, test, forecasts, data, about)

    with manifest.new_folder(out, overwrite, ENSEMBLE) as scratch:
        manifest.write_json(scratch / "scores.json", scores)
        manifest.write_json(scratch / "like.json", about)
        description = {
            "recipe": about["recipe"],
            "fingerprint": about["fingerprint"],
            "combiner": ensemble.to_dict(),
            "diversity": about_members,
            "members": {
                file.member: {
                    "folder": os.path.relpath(file.config["folder"], Path(out).resolve()),
                    "model": file.config.get("model"),
                }
                for file in by_split[on]
                if file.member in member_names and "folder" in file.config
            },
        }
        manifest.write_json(scratch / "ensemble.json", description)
        predictions.write(scratch / "test.parquet", _as_file(test, candidates[ENSEMBLE], ensemble))
        if FORECAST in aligned:
            template, of_forecast = aligned[FORECAST]
            reasons = strongest_reasons(by_split[FORECAST], ensemble)
            write_forecast(scratch, data, template, of_forecast[:, ~is_baseline], ensemble, reasons)
        card.write(scratch, about, scores)
        manifest.write_manifest(scratch, {"kind": ENSEMBLE})
    return scores


def predict(
    folder: str | Path,
    source: tuple[str, ...],
    metadata: tuple[str, ...],
    out: str | Path,
    settings: dict[str, Any],
    overwrite: bool = False,
) -> Path:
    """Forecast from raw reviews, old and new: prepare them like those the members learned from, predict, combine, rank.

    Writes `out` with forecast.parquet, forecast.csv, the prepared data and the members' prediction files.
    """
    from ensemble import config as configuration
    from ensemble.data import panel
    from ensemble.data.config import PrepareConfig

    description, like = read_fitted(folder)
    ensemble = combine.Ensemble.from_dict(description["combiner"])
    where = member_folders(folder, description, ensemble.member_names)
    present = [name for name in ensemble.member_names if where[name].is_dir()]
    for name in present or ensemble.member_names:
        check_member(name, Path(folder), description["members"][name])
    ensemble = ensemble.of(present)
    if not source:
        raise UserError("no reviews are given: add source=[reviews.jsonl]")
    if not metadata and len(like["categories"]) > 1:
        raise UserError("the members learned with product metadata, and none are given: add metadata=[meta.jsonl]")
    with manifest.new_folder(out, overwrite, "forecast") as scratch:
        data = scratch / "prepared"
        wanted = {"out": str(data), "source": source, "metadata": metadata, "panel": like["config"], **settings}
        about = panel.prepare(configuration.from_dict(PrepareConfig, wanted), like)
        if about["first_week"] > like["first_week"]:
            print(
                f"warning: these reviews begin {about['first_week']}, those the members learned from {like['first_week']}: "
                "a product's totals, age and last year are only right if all its reviews are given, old and new",
                file=sys.stderr,
            )
        files = []
        for name in ensemble.member_names:
            _run_member(name, where[name], data, scratch / "predictions")
            files.append(predictions.read(scratch / "predictions" / f"{name}.{FORECAST}.parquet"))
        template, columns = predictions.align(files)
        write_forecast(scratch, data, template, columns, ensemble, strongest_reasons(files, ensemble))
        manifest.write_manifest(scratch, {"kind": "forecast"})
    return Path(out) / "forecast.csv"


def _names(folder: Path, on: str) -> list[str]:
    names = sorted(path.name.removesuffix(f".{on}.parquet") for path in folder.glob(f"*.{on}.parquet"))
    if not names:
        of = "" if on == "blend" else f" of {on}"
        raise UserError(
            f"there are no prediction files{of} in {folder}: write them with scripts/predict.py, or check the path"
        )
    return names


def _read(path: Path, name: str, split: str, fingerprint: str, data: str | Path) -> Predictions:
    """A member's prediction file, which must be what its name says, and of this data."""
    if name in (ENSEMBLE, BASE_RATE, *RESERVED):
        raise UserError(f"no member may be called '{name}', a name of the ensemble's own: predict again with another name=…")
    file = predictions.read(path)
    if (file.member, file.split) != (name, split):
        raise UserError(
            f"{path} holds {file.member}'s predictions of {file.split}: name it {file.member}.{file.split}.parquet"
        )
    if file.fingerprint != fingerprint:
        raise UserError(
            f"member {name} predicted {split} for data {file.fingerprint}, but {data} is {fingerprint}: "
            "predict again with this data"
        )
    return file


def _outputs(by_split: dict[str, list[Predictions]], member_names: list[str]) -> list[str]:
    """What each member says, which must be the same in all splits."""
    outputs: dict[str, str] = {}
    for split, files in by_split.items():
        for file in files:
            if outputs.setdefault(file.member, file.output) != file.output:
                raise UserError(
                    f"member {file.member} says a {file.output} on {split}, and a {outputs[file.member]} on another split: "
                    "predict again with one of them"
                )
    return [outputs[name] for name in member_names]


def _where_and_when(
    kind: str, test: Predictions, forecasts: dict[str, np.ndarray], data: str | Path, about: dict[str, Any]
) -> dict[str, Any]:
    """Scores by week and by category, and how the weekly ones change with time."""
    weeks, week = np.unique(test.group, return_inverse=True)
    by_week = diversity.by_part(kind, test.target, forecasts, test.group, week, [str(number) for number in weeks])
    category = open_table(Path(data) / PRODUCTS)["category"].to_numpy()[test.cluster]
    names = [name or "unknown" for name in about["categories"]]
    return {
        "by_week": by_week,
        "by_category": diversity.by_part(kind, test.target, forecasts, test.group, category, names),
        "drift": {metric: diversity.drift(by_week, metric) for metric in SHOWN[kind]},
    }


def read_fitted(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """ensemble.json and like.json of an ensemble that forecasts from raw reviews; `UserError` if it is no sound one."""
    description, like = (manifest.read_json(Path(folder) / name) for name in ("ensemble.json", "like.json"))
    manifest.verify(folder)
    if "categories" not in like:
        raise UserError(
            f"{folder} forecasts the rows of a table, not products from reviews: give the new rows, without a target, to "
            "scripts/prepare_data.py, and fit again"
        )
    return description, like


def member_folders(folder: str | Path, description: dict[str, Any], names: Sequence[str]) -> dict[str, Path]:
    """Where each member is, by the ensemble's description; `UserError` for one that only gave prediction files."""
    for name in names:
        if name not in description["members"]:
            raise UserError(f"member {name} was not predicted by scripts/predict.py, so it cannot be asked: fit without it")
    return {name: Path(folder, description["members"][name]["folder"]).resolve() for name in names}


def check_member(name: str, ensemble: Path, about: dict[str, str]) -> None:
    """The member must be where it was, and be the one whose predictions the weights were fitted on."""
    member = ensemble / about["folder"]
    model = bag.model_of(member)
    if model is None:
        raise UserError(f"member {name} of the ensemble is not at {member}: put it back, or fit the ensemble again")
    if model != about["model"]:
        raise UserError(f"member {name} at {member} was trained anew after the ensemble was fitted: predict and fit again")


def _score(
    task: Task, test: Predictions, candidates: dict[str, np.ndarray], member_names: list[str], num_draws: int, seed: int
) -> dict[str, Any]:
    scores = {
        name: metrics.bootstrap_scores(
            test.target,
            candidate,
            test.group,
            test.cluster,
            kind=task.kind,
            num_draws=num_draws,
            generator=np.random.default_rng(seed),
        )
        for name, candidate in candidates.items()
    }
    sign = 1 if metrics.METRIC_OF[task.metric].higher_is_better else -1
    best = max(member_names, key=lambda name: sign * scores[name][task.metric].value)
    gain = metrics.bootstrap_difference(
        test.target,
        candidates[ENSEMBLE],
        candidates[best],
        test.group,
        test.cluster,
        kind=task.kind,
        num_draws=num_draws,
        generator=np.random.default_rng(seed),
    )
    return {
        "split": "test",
        "kind": task.kind,
        "metric": task.metric,
        "metrics": {name: metric._asdict() for name, metric in metrics.METRICS[task.kind].items()},
        "rows": len(test.target),
        "products": len(np.unique(test.cluster)),
        "weeks": len(np.unique(test.group)),
        "base_rate": float(np.mean(test.target)) if task.kind == "binary" else None,
        "undefined": metrics.why_undefined(test.target, task.kind),
        "left_out": metrics.what_is_left_out(test.target, test.group, task.kind),
        "num_draws": num_draws,
        "members": member_names,
        "scores": {name: {metric: _finite(interval) for metric, interval in of.items()} for name, of in scores.items()},
        "best_member": best,
        "gain_over_best_member": {metric: _finite(interval) for metric, interval in gain.items()},
    }


def _finite(interval: metrics.Interval) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if np.isfinite(value) else None for name, value in interval._asdict().items()}


def _as_file(template: Predictions, prediction: np.ndarray, ensemble: combine.Ensemble) -> Predictions:
    return dataclasses.replace(
        template,
        prediction=prediction,
        member=ENSEMBLE,
        output=OUTPUTS_OF[ensemble.kind][0],
        config={"kind": ENSEMBLE, "combiner": ensemble.to_dict()},
        reasons=None,
    )


def _run_member(name: str, member: Path, data: Path, out: Path) -> None:
    """Predict with one member in a process of its own: PyTorch and the tree libraries must not share one."""
    command = [sys.executable, str(PREDICT_SCRIPT), f"member={member}", f"data={data}", f"out={out}", f"name={name}"]
    done = subprocess.run([*command, f"splits=[{FORECAST}]"], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("error: ")
        raise UserError(f"member {name} could not predict: {last}")
