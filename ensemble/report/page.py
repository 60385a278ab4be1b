"""Write the report of an ensemble as one HTML page that needs no network: forecast, scores, members, and data.

    python scripts/report.py ensemble=runs/demo/ensemble data=runs/demo/prepared predictions=runs/demo/predictions \\
        out=runs/demo/report.html 'scaling=[slurm/results/scaling.json]'

Everything on the page is read from files: the ensemble's folder, the manifest of the prepared data, the members' prediction
files, and the members' folders, which ensemble.json names. The layout and most sentences are in page.html.j2 and the
templates that it includes; this module gathers the numbers and draws the pictures. It takes two seconds.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ensemble import folders, metrics, recipe
from ensemble.errors import UserError
from ensemble.predictor import leaderboard, used_rows
from ensemble.report import commands, decision, forecast, pictures, quality, svg, tables
from ensemble.report.run import Run, read
from ensemble.report.words import PLANNED_SPEED_UP, SPLIT_USE, method_description, templates

TEMPLATE = "page.html.j2"
OPTIONAL = ("census", "left_out", "product_census", "sources", "target")
"""Entries of a manifest that the page shows if it has them."""


def write(
    ensemble: str | Path,
    data: str | Path,
    prediction_folder: str | Path,
    out: str | Path,
    scaling: Sequence[str | Path] = (),
) -> Path:
    """Write the page in one rename and return its path. An older report is replaced, no other file is.

    scaling : JSON files of `benchmark.py scaling`, for a section on training with more ranks.
    Raises `UserError` for files that are missing, damaged or of other data, before anything is written.
    """
    out = Path(out)
    if out.is_dir():
        raise UserError(f"{out} is a folder: name the file, as in out={out / 'report.html'}")
    folders.refuse_foreign_file(out, "report")
    page = render(read(Path(ensemble), Path(data), Path(prediction_folder), scaling))
    with folders.new_file(out, "report") as scratch:
        scratch.write_text(page, encoding="utf-8")
    return out


def render(run: Run) -> str:
    """The page as HTML, from the template beside this module, or from a template of the recipe that extends it."""
    used = used_rows.sentences(run.manifest, run.scores)
    on_other_blocks = bool(used) and not recipe.follows_time(run.manifest)
    variables: dict[str, Any] = dict(
        mark=folders.MARK,
        series_of={name: svg.series_number(position) for position, name in enumerate(run.candidates)},
        dashes_of={name: _dashes(svg.dashes_of(position)) for position, name in enumerate(run.candidates)},
        manifest={**dict.fromkeys(OPTIONAL), **run.manifest},
        target_name=run.manifest.get("target", {}).get("column", run.task.target),
        task=run.task,
        words=run.words,
        sentence="",
        forward_in_time=recipe.follows_time(run.manifest),
        drawn=used_rows.drawn(run.manifest, run.scores),
        scores=run.scores,
        forecast=forecast.rows(run) if run.forecast is not None else None,
        table=tables.score_table(run),
        confusion=tables.confusion(run) if run.task.kind == "multiclass" else None,
        pictures=pictures.draw_all(run),
        members=[tables.member_row(member) for member in run.members],
        combiner=run.combiner,
        combiners=tables.methods(run.combiner.cross_fitted, run.combiner.method, on_other_blocks),
        method_metrics=list(next(iter(run.combiner.cross_fitted.values()), {})),
        metric_labels=tables.metric_labels(run),
        higher_is_better={name: metric.higher_is_better for name, metric in metrics.METRICS[run.task.kind].items()},
        calibrators=tables.methods(run.combiner.cross_fitted_calibrators, run.combiner.calibrator, on_other_blocks),
        diversity=run.diversity,
        method_description=method_description(run.combiner.method, on_other_blocks),
        importance=tables.importance(run),
        permutation=tables.permutation(run),
        split_use=used_rows.SPLIT_USE if used else SPLIT_USE,
        used_rows=used,
        scored=used_rows.place(run.scores),
        yes=(run.manifest.get("target", {}).get("names") or [run.words.yes])[-1],
        board=leaderboard.rows(run.scores, {each.name: each.folder for each in run.members if each.folder}) if used else [],
        decision=decision.costs(run) if used and run.task.kind == "binary" and not run.scores["undefined"] else None,
        quality=quality.features(run) if used else [],
        drift=quality.drift(run) if used else None,
        feature_labels=run.feature_labels,
        versions=run.versions,
        commands=commands.commands(run),
        scaling=run.scaling,
        planned=PLANNED_SPEED_UP,
        planned_dashes=_dashes(svg.PLANNED_DASHES),
    )
    template = f"recipe/{TEMPLATE}" if (run.recipe.folder / TEMPLATE).exists() else TEMPLATE
    if parts := run.recipe.get("page", "parts"):
        recipe_variables = parts(run)
        unknown = sorted(recipe_variables.keys() - variables.keys()) if template == TEMPLATE else []
        if unknown:
            raise UserError(
                f"parts(run) of the recipe {run.recipe.name} sets {unknown[0]}, which the page does not show: remove it, or "
                f"add a {TEMPLATE} to the recipe"
            )
        variables |= recipe_variables
    return _environment(run).get_template(template).render(variables)


def _environment(run: Run) -> Any:
    """Jinja2 with the templates of this folder, those of the recipe under `recipe/`, and the filters of words.py."""
    import jinja2

    shared, recipe_loader = (jinja2.FileSystemLoader(folder) for folder in (Path(__file__).parent, run.recipe.folder))
    environment = templates(jinja2.ChoiceLoader([shared, jinja2.PrefixLoader({"recipe": recipe_loader})]))
    environment.filters["score"] = partial(tables.score, run.task.kind)
    return environment


def _dashes(lengths: Iterable[float]) -> str:
    """The SVG attribute for the dashes of a line in the legend. lengths : in units of the line's width of 1.5 pixels."""
    return " ".join(f"{1.5 * length:g}" for length in lengths)
