"""A finished run to one HTML page that needs no network: which products, how good is the forecast, what did each member add.

    python scripts/report.py ensemble=runs/demo/ensemble data=runs/demo/prepared predictions=runs/demo/predictions \\
        out=runs/demo/report.html 'scaling=[slurm/results/scaling.json]'

Everything on the page is read from files that the stages before left: the ensemble's folder, the manifest of the prepared
data, the members' prediction files, and their folders, which ensemble.json names; what training gains from more ranks, where
a file of that benchmark is given. The words and their layout are in page.html.j2; here the numbers are gathered and the
pictures drawn. It takes two seconds.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ensemble import folders, metrics, recipe
from ensemble.errors import UserError
from ensemble.predictor import leaderboard, used_rows
from ensemble.report import commands, decision, forecast, pictures, quality, tables
from ensemble.report.run import Run, read
from ensemble.report.words import (
    PLANNED_SPEED_UP,
    SPLIT_USE,
    day,
    duration,
    megabytes,
    method_words,
    number,
    percent,
    significant,
)

TEMPLATE = "page.html.j2"
OPTIONAL = ("census", "left_out", "product_census", "sources", "target")
"""Entries of a manifest that the page shows if they are there."""


def write(
    ensemble: str | Path,
    data: str | Path,
    prediction_folder: str | Path,
    out: str | Path,
    scaling: Sequence[str | Path] = (),
) -> Path:
    """Write the page in one rename, over an older report but over no other file, and return its path.

    `scaling` are JSON files of that benchmark, for a part of the page on training with more ranks.
    Raises `UserError` for whatever is missing, damaged or of other data, before anything is written.
    """
    out = Path(out)
    if out.is_dir():
        raise UserError(f"{out} is a folder: name the file, as in out={out / 'report.html'}")
    folders.refuse_inside(out)
    folders.refuse_foreign_file(out, "report")
    page = render(read(Path(ensemble), Path(data), Path(prediction_folder), scaling))
    with folders.new_file(out, "report") as scratch:
        scratch.write_text(page, encoding="utf-8")
    return out


def render(run: Run) -> str:
    """The page, from the template beside this module, or from the recipe's that extends it."""
    import jinja2

    shared, of_recipe = (jinja2.FileSystemLoader(folder) for folder in (Path(__file__).parent, run.recipe.folder))
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([shared, jinja2.PrefixLoader({"recipe": of_recipe})]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for words in (percent, number, significant, day, duration, megabytes):
        environment.filters[words.__name__] = words
    environment.filters["score"] = partial(tables.score, run.task.kind)
    used = used_rows.sentences(run.about, run.scores)
    variables: dict[str, Any] = dict(
        mark=folders.MARK,
        series_of={name: pictures.fold(position) for position, name in enumerate(run.candidates)},
        dashes=[_dashes(lengths) for lengths in pictures.DASHES],
        about={**dict.fromkeys(OPTIONAL), **run.about},
        target_name=run.about.get("target", {}).get("column", run.task.target),
        task=run.task,
        words=run.words,
        sentence="",
        forward_in_time=recipe.follows_time(run.about),
        drawn="groups" if run.about["config"].get("group") else f"{run.words.unit}s",
        scores=run.scores,
        forecast=forecast.rows(run) if run.forecast is not None else None,
        table=tables.score_table(run),
        confusion=tables.confusion(run) if run.task.kind == "multiclass" else None,
        pictures=pictures.draw(run),
        members=[tables.member_row(member) for member in run.members],
        combiner=run.combiner,
        ways=tables.ways(run.combiner.cross_fitted, run.combiner.method, bool(used)),
        way_metrics=list(next(iter(run.combiner.cross_fitted.values()), {})),
        metric_words=tables.metric_words(run),
        rises={name: metric.higher_is_better for name, metric in metrics.METRICS[run.task.kind].items()},
        calibrators=tables.ways(run.combiner.cross_fitted_calibrators, run.combiner.calibrator, bool(used)),
        diversity=run.diversity,
        method_words=method_words(run.combiner.method, bool(used)),
        importance=tables.importance(run),
        permutation=tables.permutation(run),
        split_use=used_rows.SPLIT_USE if used else SPLIT_USE,
        used_rows=used,
        scored=used_rows.place(run.scores),
        yes=(run.about.get("target", {}).get("names") or [run.words.yes])[-1],
        board=_board(run) if used else [],
        decision=decision.costs(run) if used and run.task.kind == "binary" and not run.scores["undefined"] else None,
        quality=quality.features(run) if used else [],
        drift=quality.drift(run) if used else None,
        feature_words=run.feature_words,
        versions=run.versions,
        commands=commands.commands(run),
        scaling=run.scaling,
        planned=PLANNED_SPEED_UP,
        planned_dashes=_dashes(pictures.PLANNED_DASHES),
    )
    template = f"recipe/{TEMPLATE}" if (run.recipe.folder / TEMPLATE).exists() else TEMPLATE
    if parts := run.recipe.get("page", "parts"):
        of_recipe_page = parts(run)
        unknown = sorted(of_recipe_page.keys() - variables.keys()) if template == TEMPLATE else []
        if unknown:
            raise UserError(f"parts(run) of the recipe {run.recipe.name} sets {unknown[0]}, which the page does not show")
        variables |= of_recipe_page
    return environment.get_template(template).render(variables)


def _board(run: Run) -> list[dict[str, Any]]:
    return leaderboard.rows(run.scores, {member.name: member.folder for member in run.members if member.folder})


def _dashes(lengths: Iterable[float]) -> str:
    """A picture's dashes, as a legend draws them."""
    return " ".join(f"{1.5 * length:g}" for length in lengths)
