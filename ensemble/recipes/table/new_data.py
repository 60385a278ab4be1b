"""Preparation of new rows of a table as the split `forecast`, encoded as the training data.

A column that the new rows lack is empty in all of them, and a column that training did not have is left out; both are
printed. Of the other columns that are not features, only those of the settings `group` and `id` are read. The order of
columns, the format of the files and the types of columns may differ from training.
"""

import dataclasses
from typing import Any

import numpy as np
import polars as pl

from ensemble import configuration, folders
from ensemble.data import raw_files
from ensemble.data.census import Census
from ensemble.data.inputs import FORECAST
from ensemble.data.records import EXCERPT_CHARACTERS
from ensemble.errors import UserError, listed, shortened
from ensemble.recipes.table import cells, columns, missing, sources
from ensemble.recipes.table.number_forms import DECIMAL_COMMA
from ensemble.recipes.table.prepare import stripped, units, write_names, write_rows
from ensemble.recipes.table.settings import PrepareConfig

ROWS = "rows"
"""Name of the rows of a DataFrame in messages."""
PADDED_FLOAT = r"^([+-]?[1-9]\d{0,2}\.\d{3})0$"
"""Matches 5.1250, as which requests.py writes a float 5.125 in a column with texts."""


def check(training: dict[str, Any], source: bool, metadata: bool) -> None:
    """Raise `UserError` if no rows are given, or if metadata are. training : the manifest of the training data, unused."""
    if not source:
        raise UserError("no rows are given: add source=[new.csv] on the command line, or rows in Python or in a request")
    if metadata:
        raise UserError(
            "metadata describe products, but this ensemble was fitted on a table: leave out metadata= on the command line, "
            "or products in Python"
        )


def prepare(training: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Prepare the split `forecast` of new rows, and return the manifest.

    training : the manifest of the training data.
    settings : `out`, `source`, and optionally `max_bad_fraction`, the largest fraction of lines that cannot be read.
    """
    check(training, bool(settings["source"]), bool(settings.get("metadata")))
    if "min_matched" in settings:
        raise UserError("min_matched= is for metadata of products, but this ensemble was fitted on a table: leave it out")
    for name, fix in (("until", "leave it out"), ("columns", "name its columns as in training")):
        if settings.get(name):
            raise UserError(f"{name}= is for reviews, but this ensemble was fitted on a table: {fix}")
    config = stripped(configuration.from_dict(PrepareConfig, {**training["config"], "out": str(settings["out"])}))
    limits = dataclasses.replace(config, max_bad_fraction=settings.get("max_bad_fraction", config.max_bad_fraction))
    configuration.check(limits, fractions="max_bad_fraction")
    census, kind = Census(), training["task"]["kind"]
    with folders.new_folder(settings["out"], False, folders.PREPARED) as folder:
        files = raw_files.expand_sources(settings["source"], None, with_copies=True)
        table = sources.read(files, census, with_copies=True)
        census.check(limits.max_bad_fraction)
        if not table.height:
            raise UserError("there are no rows in the new files: check how they were made")
        notes = [*table.notes, *_other_columns(training, config, table)]
        arrays: dict[str, np.ndarray] = {"row_id": np.arange(table.height)}
        arrays["group"], arrays["cluster"] = np.zeros(table.height, np.int64), np.arange(table.height)
        if config.group and config.group in table.columns:
            unit, groups = units(config, table)
            assert groups is not None
            number = np.where(unit < 0, len(groups), unit)  # rows without a group form one
            arrays |= {"cluster": number, **({"group": number} if kind == "ranking" else {})}
            write_names(folder / "names", kind, groups.extend_constant("", 1), arrays, number, number >= 0)
        arrays["target"] = np.full(table.height, np.nan, np.float64 if kind == "regression" else np.float32)
        # Names had blanks in the manifests of earlier releases
        features_of = {name.strip(): features for name, features in columns.by_column(training["features"]).items()}
        cells_of = {
            name: cells.read_as(table, name, columns.kind_of(features[0]), features[0].get("form", ""), config)
            for name, features in features_of.items()
            if name in table.columns
        }
        # Not if training had columns with decimal commas: there the other columns have passed this check
        had_commas = any(DECIMAL_COMMA in feature.get("form", "") for feature in training["features"])
        if not (config.decimal or had_commas):
            cells.refuse_two_marks(table, cells_of, "leave out the thousands separators, or write 1.234 as 1.2340")
        for name, features in features_of.items():
            encoded, column_notes = _encoded(cells_of.get(name), table.height, features, training.get("texts", {}))
            arrays |= encoded
            notes += column_notes
        if config.id and config.id in table.columns:
            arrays["id"] = table.texts(config.id, "id").fill_null("").to_numpy()
        order = np.argsort(arrays["group"], kind="stable")
        write_rows(folder / "rows" / FORECAST, {name: values[order] for name, values in arrays.items()})
        print(census.table(), *notes, sep="\n")
        kept = ("kind", "recipe", "schema_version", "task", "target", "config", "features", "texts", "left_out", "alike")
        return folders.write_manifest(
            folder,
            {
                **{name: training[name] for name in kept if name in training},
                "sources": folders.sources(table.files),
                "census": census.to_dict(),
                "splits": {FORECAST: {"rows": table.height}},
                "notes": notes,
            },
        )


def _other_columns(training: dict[str, Any], config: PrepareConfig, table: sources.Table) -> list[str]:
    """Messages about columns that only training had, or only the new rows. Raises `UserError` if the new rows have no column
    of a feature, or in a ranking task no column of groups."""
    if training["task"]["kind"] == "ranking" and config.group not in table.columns:
        raise UserError(
            f"the new rows have no column '{config.group}', the groups of rows that are ranked against each other: add it"
        )
    used = {feature["column"].strip() for feature in training["features"]}
    lacking = sorted(used - set(table.columns))
    left_out = map(str.strip, training["left_out"])
    named = {config.target, config.time, config.group, config.weight, config.id, *config.drop, *left_out}
    extra = [name for name in table.columns if name not in used | named]
    near = {name: other for name in lacking for other in extra if name.lower() == other.lower()}
    hint = "".join(f"; is '{other}' meant by '{name}'? Then rename it" for name, other in near.items())
    if len(lacking) == len(used):
        raise UserError(
            f"the new rows have none of the columns that members learned from: they have {listed(table.columns, 9)}, "
            f"but need {listed(lacking, 9)}{hint}"
        )
    notes = []
    if lacking:
        notes.append(f"the new rows lack {_list(lacking)}: the cells count as empty{hint}")
    if config.id and config.id not in table.columns:
        notes.append(f"the new rows lack the id '{config.id}': they are named by their number alone")
    if extra:
        notes.append(f"training did not have {_list(extra)}: left out")
    return notes


def _encoded(
    new_cells: cells.Cells | None, num_rows: int, features: list[dict[str, Any]], texts: dict[str, Any]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The features of one column of the new rows, (num_rows,) float32 each, and messages about unusual cells.

    new_cells : None if the new rows lack the column
    """
    if new_cells is None:
        return {feature["name"]: np.full(num_rows, np.nan, np.dtype(np.float32)) for feature in features}, []
    values, notes = new_cells.values, list(new_cells.notes)
    for feature in features:
        if "values" in feature:
            notes += missing.read_as_empty_note(new_cells.column, values, feature["values"])
            unseen = cells.unseen(values, feature["values"])
            if unseen.any():  # a frame has the categories 3 and true where a CSV file may have 3.0 and True
                categories = pl.Series(feature["values"])
                category_of = dict(zip(sources.as_in_frames(categories), categories, strict=True))
                texts_of_frames = sources.as_in_frames(values.str.replace(PADDED_FLOAT, "${1}"))
                values = values.zip_with(~unseen, texts_of_frames.replace(category_of))
                unseen = cells.unseen(values, feature["values"])
            if unseen.any():
                examples = values.filter(unseen).unique(maintain_order=True).to_list()
                shown = listed([repr(shortened(text, EXCERPT_CHARACTERS)) for text in examples], cells.MOST_SHOWN)
                notes.append(
                    f"the column '{new_cells.column}' has cells with texts that training does not have, which count as "
                    f"empty ({unseen.sum():,}): {shown}"
                )
    return columns.encode(values, features, texts), notes


def _list(names: list[str]) -> str:
    """The names as words within a sentence, such as "the columns 'a', 'b'"."""
    return f"the columns {', '.join(repr(name) for name in names)}" if len(names) > 1 else f"the column {names[0]!r}"
