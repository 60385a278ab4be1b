"""Compares next_item members by their ranking files: scores, also by length of history, and confidence intervals.

    table.md         a row for each member and baseline, the best NDCG@10 first
    scores.json      all scores, HR@10 and NDCG@10 also by length of history, NDCG@10 with 95 % intervals over users
    by_length.png    NDCG@10 by length of history
    forecast.csv     the ten best items of each user after the last event, by the best member on validation: rank,
                     user_id, item_id and score; if this member has a ranking file of forecast

Members trained on candidates, and ensembles of them, rank only the candidates of a sequence. If the target is not among the
candidates, its rank is infinite and its score 0. So the scores of all members are over the same rows, with all items ranked.
"""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from ensemble import folders, predictions
from ensemble.arrow import open_table, ranges, read_columns
from ensemble.commands import imports
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError
from ensemble.metrics import bootstrap
from ensemble.recipes.next_item import item_metrics, rankings
from ensemble.recipes.next_item.item_ranks import NUM_SAMPLED, tie_key

KIND = "ranking table"
RECIPE = "next_item"
METRIC = "ndcg_at_10"
"""The score that has intervals, and by which members are sorted."""
COLUMNS = {
    "hr_at_10": "HR@10",
    "mrr_at_10": "MRR@10",
    "ndcg_at_5": "NDCG@5",
    "ndcg_at_20": "NDCG@20",
    "coverage_at_10": "coverage@10",
    "popularity_at_10": "popularity@10",
    "ndcg_at_10_of_101": "NDCG@10 among 101 sampled items",
}
"""The further scores of table.md, with their headers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """The rankings of a member for N rows, in the order of the row ids."""

    name: str
    is_baseline: bool
    rank: np.ndarray
    """(N,), the rank of each row's target; infinite if it was taken before or is not among the candidates."""
    rank_of_101: np.ndarray | None
    """(N,), the rank among the target and 100 sampled items; None for members that rank only candidates."""
    items: np.ndarray
    """(N, K), the items with the best ranks, the best first, 0 for none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """The members, and the N rows that all of them rank."""

    rows: rankings.Rankings
    """One of the ranking files; all of them have its row ids, users, targets and lengths."""
    members: list[Member]


def compare(
    out: str | Path,
    data: str | Path,
    rankings: str | Path,
    candidates: str | Path = "",
    predictions: str | Path = "",
    ensemble: str | Path = "",
    names: Collection[str] = (),
    *,
    split: str = "test",
    num_draws: int,
    seed: int,
    overwrite: bool = True,
) -> dict[str, Any]:
    """Write the comparison of all members to the folder `out`, and return the content of scores.json.

    data : prepared data of next_item. rankings : the folder of the ranking files of validation and of `split`. candidates,
    predictions, ensemble, names : see `read_candidates`; empty for none. num_draws, seed : the number of draws and the
    random seed of the bootstrap over users.
    """
    with folders.new_folder(out, overwrite, KIND) as folder:
        table = read(rankings, data, split)
        best = best_on_validation(rankings, table)
        _write_forecast(folder, Path(rankings), best, Path(data))
        if candidates:
            table = read_candidates(table, candidates, predictions, ensemble, names)
        scores = score(table, data, best, num_draws, seed)
        write(folder, scores)
    return scores


def read(folder: str | Path, data: str | Path, split: str) -> Table:
    """Read the ranking files of a split. Raises `UserError` if there are none, if they are of other data, or for a split
    without targets."""
    if split == FORECAST:
        raise UserError(f"split={FORECAST} has no targets, so nothing can be scored: compare split=test")
    manifest = folders.read_manifest(data)
    if manifest["recipe"] != RECIPE:
        raise UserError(
            f"{data} was prepared for the recipe {manifest['recipe']}, which ranks no items: set data= to data of {RECIPE}"
        )
    files = rankings.read_together(_paths(folder, split))
    first = files[0]
    if (first.fingerprint, first.split) != (manifest["fingerprint"], split):
        raise UserError(
            f"{folder} ranks {first.split} of data with the fingerprint {first.fingerprint}, but data={data} has the "
            f"fingerprint {manifest['fingerprint']}, and the split is {split}: name the data that was predicted"
        )
    for file in files:
        rankings.check_items(file, manifest["items"])
    members = [
        Member(
            name=file.member,
            is_baseline=file.config.get("kind") == "baseline",
            rank=file.rank,
            rank_of_101=file.rank_of_101,
            items=file.items[:, : item_metrics.NUM_BEST],
        )
        for file in files
    ]
    return Table(rows=first, members=members)


def read_candidates(
    table: Table, candidates: str | Path, files: str | Path, ensemble: str | Path, names: Collection[str] = ()
) -> Table:
    """Add members that were trained on candidates to the table, and an ensemble of them.

    files : the folder of the prediction files, '' for none. ensemble : the folder of the ensemble, '' for none. names : the
    members to read from `files`; empty for all. Raises `UserError` for prediction files of other candidates, for candidates
    of other data or of rows that the ranking files lack, and for a split other than test, since these members were trained
    on sequences of validation.
    """
    manifest, ranked, members = folders.read_manifest(candidates), table.rows, list(table.members)
    if manifest.get("data") != ranked.fingerprint:
        raise UserError(
            f"{candidates} has no candidates of {ranked.fingerprint}, the data of the ranking files: prepare them with "
            "scripts/prepare_data.py --recipe candidates"
        )
    if ranked.split != "test":
        raise UserError(f"members were trained on candidates of {ranked.split}: compare split=test, or leave candidates out")
    row_id, sequence, item = read_columns(Path(candidates) / "rows" / ranked.split, ("row_id", "sequence", "item")).values()
    if not np.isin(sequence, ranked.row_id).all():  # those of another program may have some rows only
        raise UserError(f"the ranking files lack rows of {ranked.split} that {candidates} has: predict again")
    row = np.searchsorted(ranked.row_id, sequence)
    paths = _paths(files, ranked.split) if files else []
    paths = [path for path in paths if not names or path.name.removesuffix(f".{ranked.split}.parquet") in names]
    paths += [Path(ensemble) / f"{ranked.split}.parquet"] if ensemble else []
    for path in paths:
        file = predictions.read(path)
        if file.fingerprint != manifest["fingerprint"]:
            raise UserError(
                f"{path} is of data with the fingerprint {file.fingerprint}, but {candidates} has the fingerprint "
                f"{manifest['fingerprint']}: predict again"
            )
        if file.member in manifest["rankings"] and file.config.get("kind") in ("baseline", "ranking"):
            continue  # the table already has this member, by its ranking of all items
        order = np.argsort(file.row_id)
        if not np.array_equal(file.row_id[order], row_id):
            raise UserError(f"{path} has other rows than {ranked.split} of {candidates}: predict again")
        rank, items = among_candidates(len(ranked.row_id), row, item, item == ranked.target[row], file.prediction[order])
        members.append(Member(name=file.member, is_baseline=False, rank=rank, rank_of_101=None, items=items))
    return dataclasses.replace(table, members=members)


def among_candidates(
    num_rows: int, row: np.ndarray, item: np.ndarray, is_target: np.ndarray, score: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each row's target among its candidates, infinite if it is not a candidate, and the best candidates.

    row, item, is_target, score : (n,), of each candidate; an item is at most once in a row. Returns ranks (num_rows,) and
    items (num_rows, 10), 0 if there are fewer. Tied items are in the order of `tie_key`.
    """
    order = np.lexsort((tie_key(item), -score, row))
    row, item, is_target = row[order], item[order], is_target[order]
    position = np.arange(len(row)) - np.searchsorted(row, row)
    rank = np.full(num_rows, np.inf)
    rank[row[is_target]] = 1 + position[is_target]
    best = np.zeros((num_rows, item_metrics.NUM_BEST), np.int64)
    is_shown = position < item_metrics.NUM_BEST
    best[row[is_shown], position[is_shown]] = item[is_shown]
    return rank, best


def _write_forecast(folder: Path, files: Path, name: str, data: Path) -> None:
    """Write forecast.csv from a member's ranking file of forecast, if there is one.

    Raises `UserError` if the file is of another split, or of another model or other data than that of validation.
    """
    path = files / f"{name}.{FORECAST}.parquet"
    if not path.exists():
        return
    file, validation = rankings.read(path), rankings.read(files / f"{name}.validation.parquet")
    if file.split != FORECAST:
        raise UserError(f"{path} holds a ranking of {file.split}: name it {name}.{file.split}.parquet")
    if (file.fingerprint, file.config.get("model")) != (validation.fingerprint, validation.config.get("model")):
        raise UserError(f"{path} is of another model or of other data than the file of validation: predict both again")
    file = rankings.sorted_by_row(file)
    rankings.check_items(file, num_items := folders.read_manifest(data)["items"])
    rows = read_columns(data / "rows" / FORECAST, ("row_id", "user", "begin", "end"))
    order = np.argsort(rows["row_id"])
    row_id, user, begin, end = (values[order] for values in rows.values())
    if not np.array_equal(row_id, file.row_id):
        raise UserError(f"{path} does not have all rows of {FORECAST} of {data}: predict again")
    # Another program may rank items that the user took before
    event, owner = ranges(begin, end)
    taken = owner * (num_items + 1) + read_columns(data / "events", ["item"])["item"][event]
    is_new = (file.items > 0) & ~np.isin(np.arange(len(row_id))[:, None] * (num_items + 1) + file.items, taken)
    place = np.cumsum(is_new, axis=1)
    row, column = np.nonzero(is_new & (place <= item_metrics.NUM_BEST))
    columns = {
        "rank": place[row, column],
        "user_id": open_table(data / "users")["user_id"].take(user[row]),
        "item_id": open_table(data / "items")["item_id"].take(file.items[row, column] - 1),
        "score": file.scores[row, column],
    }
    pyarrow.csv.write_csv(pa.table(columns), folder / "forecast.csv")


def best_on_validation(folder: str | Path, table: Table) -> str:
    """The name of the member with the highest NDCG@10 on validation. It is a baseline only if there are no other members."""
    trained = [member for member in table.members if not member.is_baseline]
    scores = {}
    for member in trained or table.members:
        file = rankings.read(Path(folder) / f"{member.name}.validation.parquet")
        if (file.fingerprint, file.split) != (table.rows.fingerprint, "validation"):
            raise UserError(
                f"{member.name}.validation.parquet is of {file.split} of data with the fingerprint {file.fingerprint}, "
                f"not of validation of data with the fingerprint {table.rows.fingerprint}: predict again"
            )
        scores[member.name] = item_metrics.ndcg(file.rank, 10).mean()
    return max(scores, key=lambda name: scores[name])


def score(table: Table, data: str | Path, best: str, num_draws: int, seed: int) -> dict[str, Any]:
    """The content of scores.json."""
    count = read_columns(Path(data) / "items", ["count"])["count"]
    names = [member.name for member in table.members]
    predictions.check_names(names)
    has_sample = len(count) > NUM_SAMPLED  # otherwise there are no sampled metrics
    gain = np.stack([item_metrics.ndcg(member.rank, 10) for member in table.members], axis=1)
    reference = names.index(best)

    def means(weight: np.ndarray) -> np.ndarray:
        mean = weight @ gain / weight.sum()
        return np.concatenate([mean, mean - mean[reference]])

    labels = [f"{prefix}{name}" for prefix in ("", "less ") for name in names]
    intervals = bootstrap.intervals(
        labels, bootstrap.draws_of(means, table.rows.user, num_draws, np.random.default_rng(seed))
    )
    members: dict[str, dict[str, Any]] = {
        member.name: {
            "is_baseline": member.is_baseline,
            "scores": item_metrics.item_scores(
                member.rank, member.items, table.rows.target, count, member.rank_of_101 if has_sample else None
            ),
            METRIC: intervals[member.name].as_json(),
            "less_best_on_validation": intervals[f"less {member.name}"].as_json(),
            "by_length": item_metrics.scores_by_length(member.rank, table.rows.length),
        }
        for member in table.members
    }
    return {
        "split": table.rows.split,
        "fingerprint": table.rows.fingerprint,
        "rows": len(table.rows.row_id),
        "users": len(np.unique(table.rows.user)),
        "items": len(count),
        "num_draws": num_draws,
        "best_on_validation": best,
        "members": dict(sorted(members.items(), key=lambda pair: -pair[1][METRIC]["value"])),
    }


def write(folder: Path, scores: dict[str, Any]) -> str:
    """Write the three files and the manifest into a folder, and return the text of table.md."""
    text = as_text(scores)
    (folder / "table.md").write_text(text, encoding="utf-8")
    folders.write_json(folder / "scores.json", scores)
    _draw(folder / "by_length.png", scores)
    folders.write_manifest(folder, {"kind": KIND})
    return text


def as_text(scores: dict[str, Any]) -> str:
    """The text of table.md."""
    best = scores["best_on_validation"]
    lines = [
        f"{scores['split']}: {scores['rows']:,} sequences of {scores['users']:,} users; the next item is ranked among "
        f"{scores['items']:,} items except those taken before; 95 % intervals from {scores['num_draws']:,} draws of users.",
        f"The best trained member on validation is {best}; baselines are scored too, but never chosen."
        if any(not member["is_baseline"] for member in scores["members"].values())
        else f"The best baseline on validation is {best}.",
    ]
    if scores["items"] <= NUM_SAMPLED:
        lines.append(f"There are only {scores['items']} items, so there are no metrics on a sample of {NUM_SAMPLED + 1}.")
    lines += [
        "",
        f"| member | NDCG@10 | minus {best} | {' | '.join(COLUMNS.values())} |",
        f"|---|{'---|' * (2 + len(COLUMNS))}",
    ]
    for name, member in scores["members"].items():
        cells = [f"{member['scores'][column]:.4f}" if column in member["scores"] else "–" for column in COLUMNS]
        difference = "–" if name == best else _cell(member["less_best_on_validation"], "+.4f")
        label = f"{name} (baseline)" if member["is_baseline"] else name
        lines.append(f"| {label} | {_cell(member[METRIC], '.4f')} | {difference} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(interval: dict[str, float], form: str) -> str:
    ends = "" if interval["low"] is None else f" [{interval['low']:{form}}, {interval['high']:{form}}]"
    return f"{interval['value']:{form}}{ends}"


def _draw(file: Path, scores: dict[str, Any]) -> None:
    """Draw the NDCG@10 of each member by length of history."""
    figure = imports.figure_class()(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, member in scores["members"].items():
        parts = member["by_length"]
        style = "o--" if member["is_baseline"] else "o-"
        axes.plot(list(parts), [part[METRIC] for part in parts.values()], style, label=name)
    parts = next(iter(scores["members"].values()))["by_length"]
    axes.set_xticks(range(len(parts)), [f"{length}\n{part['rows']:,} rows" for length, part in parts.items()])
    axes.set(xlabel="items taken before", ylabel="NDCG@10", title=f"{scores['split']}: NDCG@10 by length of history")
    axes.set_ylim(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=120, format="png")


def _paths(folder: str | Path, split: str) -> list[Path]:
    """The files of a split in a folder of ranking files or prediction files. Raises `UserError` if there are none."""
    paths = sorted(Path(folder).glob(f"*.{split}.parquet"))
    if not paths:
        raise UserError(f"there are no files of {split} in {folder}: write them with scripts/predict.py, or check the path")
    return paths
