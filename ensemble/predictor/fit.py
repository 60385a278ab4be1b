"""Fit an ensemble on prediction files: weights and calibration, scores with intervals, and a ranked forecast.

Weights and calibration are fitted on the split blend, or on out-of-fold predictions (the split oof). The split test is
scored. Data for cross-validation may have no test split. Then each out-of-fold row is scored by weights and calibration that
were fitted on other rows.

    ensemble.json      weights, calibration, the folders of the members, the cross-fitted score of each combiner, error
                       correlations, what each member adds, scores by part of the data, and warnings, such as of a leak
    scores.json        every metric of the ensemble, its members and the baselines, with bootstrap intervals
    test.parquet       the ensemble's prediction file of the scored split; named oof.parquet or blend.parquet without a test
                       split, where the rows that weights are fitted on are scored
    forecast.parquet   the ranked forecast, also as forecast.csv, if the data have rows to forecast (forecast.py)
    like.json          the manifest of the data, by which new raw data are prepared in the same way
    README.md          the model card

Files are joined by row id. No library of a member is loaded. new_data.py predicts new rows with the result.
"""

import dataclasses
import sys
from os.path import realpath, relpath
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ensemble import combine, folders, predictions, recipe
from ensemble.combine import diversity
from ensemble.combine.fitting import counted_rows
from ensemble.combine.selection import AUTO
from ensemble.data import drift
from ensemble.data.cross_validation import CrossValidation
from ensemble.data.inputs import FORECAST
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.errors import UserError
from ensemble.predictions import OUTPUTS_OF, Predictions
from ensemble.predictor import card, member_files, scoring
from ensemble.predictor.forecast import write_forecast
from ensemble.predictor.intervals import Intervals
from ensemble.predictor.member_files import MemberFiles
from ensemble.predictor.scoring import BASE_RATE, ENSEMBLE
from ensemble.task import Task, task_of

MANY_ROWS = 10_000
"""With more out-of-fold rows, the bootstrap of the weights has fewer draws: each takes longer, and the weights vary less."""
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
    """Fit an ensemble, score it and forecast with it; write the folder `out` and return the content of scores.json.

    folder : the prediction files, MEMBER.SPLIT.parquet. data : the prepared data that were predicted. members : names of
    members and baselines, if empty all with a file of `on`. num_draws, seed : of the bootstrap over clusters. combiner,
    calibration : as for `combine.fit`. on : the split that weights and calibration are fitted on, blend or oof; empty for
    oof if the data are for cross-validation, else blend. compare : whether a combiner that is named is compared with the
    others, for the report. Every `UserError` is raised before anything is written.
    """
    for name, value, least in (("num_draws", num_draws, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"{name}={value} is impossible: it must be at least {least}")
    manifest = folders.read_manifest(data)
    on = on or (OUT_OF_FOLD if CrossValidation.from_manifest(manifest) else "blend")
    if on not in FITTED_ON:
        raise UserError(f"on={on} is not a split on which weights can be fitted: choose {' or '.join(FITTED_ON)}")
    scored = "test" if "test" in manifest["splits"] else on
    read = member_files.read(Path(folder), data, manifest, members, on, scored)
    task = task_of(manifest)
    fitted = _fit(manifest, task, read, combiner=combiner, calibration=calibration, compare=compare)
    ensemble, clustered = fitted.ensemble, scoring.with_clusters(manifest, fitted.test)
    scores = {
        **scoring.score(task, clustered, fitted.candidates, read.member_names, num_draws, seed),
        "split": scored,
        "fitted_on": on,
        "out_of_fold_rows": len(read.rows[on].row_id) if on == OUT_OF_FOLD else None,
        "intervals": fitted.coverage,
        "warnings": fitted.warnings,
        "weights": dict(zip(ensemble.member_names, ensemble.weights, strict=True)),
        "combiner": {"method": ensemble.method, "cross_fitted": ensemble.cross_fitted},
        "settings": {"combiner": combiner, "calibration": calibration, "num_draws": num_draws, "seed": seed},
    }
    description = _describe(manifest, data, task, read, fitted, seed, Path(out).resolve())
    config = {"kind": ENSEMBLE, "combiner": ensemble.to_dict()}
    origin: dict[str, Any] = {"member": ENSEMBLE, "output": OUTPUTS_OF[task.kind][0], "config": config, "reasons": None}
    of_ensemble = dataclasses.replace(fitted.test, prediction=fitted.candidates[ENSEMBLE], **origin)
    with folders.new_folder(out, overwrite, ENSEMBLE) as scratch:
        for name, content in (("scores", scores), ("like", manifest), ("ensemble", description)):
            folders.write_json(scratch / f"{name}.json", content)
        predictions.write(scratch / f"{scored}.parquet", of_ensemble)
        if FORECAST in read.rows:
            files = [file for file in read.files[FORECAST] if file.member in read.member_names]
            write_forecast(scratch, data, files, ensemble, fitted.intervals)
        card.write(scratch, manifest, scores)
        folders.write_manifest(scratch, {"kind": ENSEMBLE})
    return scores


class _Fitted(NamedTuple):
    """An ensemble and its predictions of the scored rows."""

    ensemble: combine.Ensemble
    is_forward: bool
    """Whether the cross-fitted predictions of each block are by weights that were fitted on earlier blocks only."""
    test: Predictions
    """The scored rows."""
    candidates: dict[str, np.ndarray]
    """Predictions of the scored rows by ensemble, members, baselines and base rate."""
    coverage: dict[str, Any] | None
    """The coverage of the intervals of a regression, as in scores.json."""
    intervals: Intervals | None
    """The prediction intervals of a regression."""
    warnings: list[str]


def _fit(manifest: dict[str, Any], task: Task, read: MemberFiles, **methods: Any) -> _Fitted:
    """Fit weights, calibration and intervals, predict the scored rows, print warnings. methods : as for `combine.fit`."""
    fit_rows, columns, cv = read.rows[read.on], read.of_members(read.on), CrossValidation.from_manifest(manifest)
    is_forward = cv is None or cv.scheme == "forward"
    methods |= {"kind": task.kind, "loss": task.loss, "outputs": read.outputs(), "is_relative": task.is_relative}
    methods |= {"weight": fit_rows.weight, "is_forward": is_forward, "only_safe": cv is not None and cv.scheme == "groups"}
    ensemble, cross_fitted = combine.fit_cross_fitted(fit_rows.target, columns, fit_rows.group, read.member_names, **methods)
    test, candidates = _candidates(task, read, ensemble, cross_fitted, is_forward)
    warnings = scoring.warnings_of_leaks(task, fit_rows, dict(zip(read.member_names, columns.swapaxes(0, 1), strict=True)))
    warnings += scoring.warnings_of_few(task, scoring.with_clusters(manifest, test))
    for sentence in warnings:
        print(f"warning: {sentence}", file=sys.stderr)
    combined, other_rows = candidates[ENSEMBLE], (None if read.scored == read.on else test)
    coverage, intervals = scoring.intervals_of(task.kind, fit_rows, cross_fitted, other_rows, combined, is_forward)
    return _Fitted(ensemble, is_forward, test, candidates, coverage, intervals, warnings)


def _describe(
    manifest: dict[str, Any], data: str | Path, task: Task, read: MemberFiles, fitted: _Fitted, seed: int, out: Path
) -> dict[str, Any]:
    """The content of ensemble.json."""
    fit_rows, ensemble = scoring.with_clusters(manifest, read.rows[read.on]), fitted.ensemble
    is_cross_validation = CrossValidation.from_manifest(manifest) is not None
    has_many_rows = is_cross_validation and len(fit_rows.target) > MANY_ROWS
    num_draws = diversity.NUM_DRAWS // 3 if has_many_rows else diversity.NUM_DRAWS
    columns = fit_rows.target, read.of_members(read.on), fit_rows.group, fit_rows.cluster
    generator = np.random.default_rng(seed)
    analysis = diversity.measure(ensemble, *columns, generator, fit_rows.weight, fitted.is_forward, num_draws)
    if scores_by_part := recipe.of(manifest).get("outputs", "scores_by_part"):
        test_predictions = {name: fitted.candidates[name] for name in (ENSEMBLE, *read.member_names)}
        analysis |= scores_by_part(task.kind, fitted.test, test_predictions, data)
    return {
        "recipe": manifest["recipe"],
        "fingerprint": manifest["fingerprint"],
        "combiner": ensemble.to_dict(),
        "warnings": fitted.warnings,
        "intervals": None if fitted.intervals is None else dataclasses.asdict(fitted.intervals),
        "diversity": analysis,
        **({"bins_of_train": drift.bins_of_train(data, manifest)} if is_cross_validation else {}),
        # The folder of each member that has one, relative to the ensemble's folder, and the fingerprint of its model
        "members": {
            file.member: {"folder": relpath(realpath(file.config["folder"]), out), "model": file.config.get("model")}
            for file in read.files[read.on]
            if file.member in read.member_names and "folder" in file.config
        },
    }


def _candidates(
    task: Task, read: MemberFiles, ensemble: combine.Ensemble, cross_fitted: np.ndarray, is_forward: bool
) -> tuple[Predictions, dict[str, np.ndarray]]:
    """The scored rows, and by name the predictions of ensemble, members, baselines and base rate for them.

    cross_fitted : the ensemble's predictions of `read.on`, NaN where there are none; scored if `read.scored` is that split.
    """
    fit_rows, test, columns = read.rows[read.on], read.rows[read.scored], read.columns[read.scored]
    of_members = read.probabilities(ensemble, is_forward)
    if read.scored == read.on:
        is_predicted = np.isfinite(cross_fitted.reshape(len(cross_fitted), -1)).all(axis=1)
        test, columns = predictions.select_rows(test, is_predicted), columns[is_predicted]
        candidates = {name: each[is_predicted] for name, each in {ENSEMBLE: cross_fitted, **of_members}.items()}
    else:
        candidates = {ENSEMBLE: ensemble.predict(read.of_members(read.scored), read.member_names, test.group), **of_members}
    weight, counted = counted_rows(fit_rows.weight)
    target, group = fit_rows.target[counted], fit_rows.group[counted]
    for number in np.flatnonzero(read.is_baseline):
        prediction = columns[:, number]
        if task.kind == "binary":  # only the order of a baseline has a meaning: its probabilities are fitted as well
            fit_score = read.columns[read.on][:, number][counted]
            prediction = combine.ranked_prediction(target, fit_score, group, prediction, test.group, weight)
        candidates[read.names[number]] = prediction
    candidates[BASE_RATE] = combine.base_rate_prediction(target, len(test.target), task.loss, len(task.classes), weight)
    return test, candidates
