"""Prediction files to a fitted ensemble, its scores, and a ranked forecast.

Weights and calibration are fitted on the split blend, or on out-of-fold predictions (the split oof). Scores are those of the
split test. Data for cross-validation may have none: then each out-of-fold row is scored by weights and calibration that were
fitted on other rows.

    ensemble.json      weights, calibration, members and where they are, what each way to combine would have given, how alike
                       the members are, what each adds, where and when each fails, and warnings, such as of a leak
    scores.json        every metric of the ensemble, its members and the baselines, with bootstrap intervals
    test.parquet       the ensemble's own prediction file of the split that is scored, or oof.parquet
    forecast.parquet   the ranked forecast, also as forecast.csv, if the data have rows to forecast (forecast.py)
    like.json          the manifest of the data, by which new raw data are prepared alike
    README.md          the model card

It joins files by row id and loads none of the members' libraries. new_data.py forecasts with what it wrote.
"""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import combine, folders, predictions, recipe
from ensemble.combine import diversity
from ensemble.combine.fitting import OUTPUTS_OF, counted_rows
from ensemble.combine.selection import AUTO
from ensemble.data import drift
from ensemble.data.cross_validation import CrossValidation
from ensemble.data.inputs import FORECAST
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import card, leaks, scoring
from ensemble.predictor.forecast import RESERVED, write_forecast
from ensemble.predictor.scoring import ENSEMBLE
from ensemble.task import Task, task_of

BASE_RATE = "base rate"
MANY_ROWS = 10_000
"""Out-of-fold rows above which the weights' bootstrap has fewer draws: it takes longer, and the weights vary less."""
FITTED_ON = ("blend", OUT_OF_FOLD)


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
    on: str = "",
    compare: bool = True,
) -> dict[str, Any]:
    """Fit, score, forecast; writes `out` and returns the scores, with what each way would have given.

    folder : prediction files, MEMBER.SPLIT.parquet. data : the prepared data they are of. members : names, all if empty.
    num_draws, seed : of the bootstrap over clusters. combiner, calibration : as for `combine.fit`. on : blend, or oof, the
    rows that were predicted out of fold; empty for oof where the data are for cross-validation, else blend. compare :
    whether a named combiner is compared with others, for the page. Raises `UserError` before anything is written.
    """
    for name, value, least in (("num_draws", num_draws, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"{name}={value} is impossible: it must be at least {least}")
    about = folders.read_manifest(data)
    cv = CrossValidation.of(about)
    on = on or (OUT_OF_FOLD if cv else "blend")
    if on not in FITTED_ON:
        raise UserError(f"on={on} is no split that weights can be fitted on: name {' or '.join(FITTED_ON)}")
    scored = "test" if "test" in about["splits"] else on
    is_forward = cv is None or cv.scheme == "forward"
    task, its_recipe = task_of(about), recipe.of(about)
    reserved = (ENSEMBLE, BASE_RATE, *RESERVED, *(its_recipe.get("outputs", "RESERVED") or ()))
    names = sorted(members) or _names(Path(folder), on)
    for name in names:
        if name in reserved:
            raise UserError(
                f"no member may be called '{name}', a name of the ensemble's own: predict again with another name=…"
            )
    by_split = {
        split: [_read(Path(folder) / f"{name}.{split}.parquet", name, split, about["fingerprint"], data) for name in names]
        for split in dict.fromkeys((on, scored, FORECAST))
        if split != FORECAST or FORECAST in about["splits"]
    }
    aligned = {split: predictions.align(files) for split, files in by_split.items()}
    is_baseline = np.array([file.config.get("kind") == "baseline" for file in by_split[on]])
    member_names = [name for name, baseline in zip(names, is_baseline, strict=True) if not baseline]
    if not member_names:
        raise UserError(f"there is no member in {folder}, only baselines: train one and predict with it")

    blend, of_blend = aligned[on]
    test, of_test = aligned[scored]
    outputs = _outputs(by_split, member_names)
    ensemble, cross_fitted = combine.fit_cross_fitted(
        blend.target,
        of_blend[:, ~is_baseline],
        blend.group,
        member_names,
        kind=task.kind,
        outputs=outputs,
        combiner=combiner,
        calibration=calibration,
        weight=blend.weight,
        is_forward=is_forward,
        compare=compare,
    )
    if scored == on:
        there = np.isfinite(cross_fitted.reshape(len(cross_fitted), -1)).all(axis=1)
        test, of_test = predictions.select_rows(test, there), of_test[there]
        candidates = {ENSEMBLE: cross_fitted[there]}
    else:
        candidates = {ENSEMBLE: ensemble.predict(of_test[:, ~is_baseline], member_names, test.group)}
    for number in np.flatnonzero(~is_baseline):
        candidates[names[number]] = ensemble.probabilities(names[number], of_test[:, number])
    for number in np.flatnonzero(is_baseline):
        candidates[names[number]] = _baseline(task, blend, of_blend[:, number], test, of_test[:, number])
    weight, counted = counted_rows(blend.weight)
    candidates[BASE_RATE] = combine.base_rate_prediction(
        blend.target[counted], len(test.target), task.kind, len(task.classes), weight
    )
    warnings = leaks.perfect(task, blend, dict(zip(names, of_blend.swapaxes(0, 1), strict=True)), member_names)
    for sentence in warnings:
        print(f"warning: {sentence}", file=sys.stderr)
    scores = scoring.score(task, test, candidates, member_names, num_draws, seed)
    scores["split"] = scored
    scores["fitted_on"] = on
    scores["out_of_fold_rows"] = len(blend.row_id) if on == OUT_OF_FOLD else None
    scores["intervals"], ends = scoring.intervals_of(
        task, blend, cross_fitted, None if scored == on else test, candidates, is_forward
    )
    scores["warnings"] = warnings
    scores["weights"] = dict(zip(ensemble.member_names, ensemble.weights, strict=True))
    scores["combiner"] = {"method": ensemble.method, "cross_fitted": ensemble.cross_fitted}
    about_members = diversity.measure(
        ensemble,
        blend.target,
        of_blend[:, ~is_baseline],
        blend.group,
        blend.cluster,
        np.random.default_rng(seed),
        blend.weight,
        is_forward,
        diversity.NUM_DRAWS if cv is None or len(blend.target) <= MANY_ROWS else diversity.NUM_DRAWS // 3,
    )
    scores_by_part = its_recipe.get("outputs", "scores_by_part")
    if scores_by_part:
        forecasts = {name: candidates[name] for name in (ENSEMBLE, *member_names)}
        about_members |= scores_by_part(task.kind, test, forecasts, data)

    with folders.new_folder(out, overwrite, ENSEMBLE) as scratch:
        folders.write_json(scratch / "scores.json", scores)
        folders.write_json(scratch / "like.json", about)
        description = {
            "recipe": about["recipe"],
            "fingerprint": about["fingerprint"],
            "combiner": ensemble.to_dict(),
            "warnings": warnings,
            "intervals": None if ends is None else dataclasses.asdict(ends),
            "diversity": about_members,
            **({"bins_of_train": drift.bins_of_train(data, about)} if cv else {}),
            "members": {
                file.member: {
                    "folder": os.path.relpath(file.config["folder"], Path(out).resolve()),
                    "model": file.config.get("model"),
                }
                for file in by_split[on]
                if file.member in member_names and "folder" in file.config
            },
        }
        folders.write_json(scratch / "ensemble.json", description)
        predictions.write(scratch / f"{scored}.parquet", _as_file(test, candidates[ENSEMBLE], ensemble))
        if FORECAST in aligned:
            template, of_forecast = aligned[FORECAST]
            write_forecast(scratch, data, template, of_forecast[:, ~is_baseline], ensemble, by_split[FORECAST], ends)
        card.write(scratch, about, scores)
        folders.write_manifest(scratch, {"kind": ENSEMBLE})
    return scores


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


def _baseline(task: Task, blend: Predictions, of_blend: np.ndarray, test: Predictions, of_test: np.ndarray) -> np.ndarray:
    """A baseline's predictions of test; of a binary task it only ranks, and blend makes probabilities of its scores."""
    if task.kind != "binary":
        return of_test
    weight, counted = counted_rows(blend.weight)
    return combine.ranked_prediction(
        blend.target[counted], of_blend[counted], blend.group[counted], of_test, test.group, weight
    )


def _as_file(template: Predictions, prediction: np.ndarray, ensemble: combine.Ensemble) -> Predictions:
    return dataclasses.replace(
        template,
        prediction=prediction,
        member=ENSEMBLE,
        output=OUTPUTS_OF[ensemble.kind][0],
        config={"kind": ENSEMBLE, "combiner": ensemble.to_dict()},
        reasons=None,
    )
