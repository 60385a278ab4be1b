"""Ranking files to a table of candidates: what next_item members rank highest, for trees and an ensemble to rank again.

    python scripts/prepare_data.py --recipe candidates data=runs/beauty/prepared 'rankings=[runs/beauty/rankings]' \\
        out=runs/beauty/candidates

The candidates of a sequence are the best items of each ranking file, but for those that its user took before. (A ranking
file never shows such an item, unless it is the target: to keep it would be to tell.) `rows/<split>` has a row for each:

    row_id    the row's number
    group     the sequence: its row id; with split=time a number that rises with the time of what was taken
    cluster   the user
    sequence  the sequence's row id in the data of next_item
    item      the candidate, by its number
    target    1 for the item that was taken, else 0
    the features: of each ranking file score, score less the row's best, and place, NaN where the item is not among its best;
    and what features.py knows of the item at that moment

Members learned from train alone: what they say of validation is honest, but for when they stopped. Its sequences are dealt
to train, validation and blend, by user, or with split=time forward in time, no moment in two of them. Test is test. A
sequence whose target is no candidate teaches nothing: it is only left in test, where compare_rankings.py counts it as a miss
(the ensemble's own scores leave it out, and say so). In train and validation a few candidates stand for all of them.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble import configuration, folders
from ensemble.arrow import Column, TableWriter, open_table, ranges, stored_names
from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.next_item import rankings
from ensemble.recipes.next_item.candidates import features as candidate_features
from ensemble.recipes.next_item.candidates.features import PastEvents
from ensemble.recipes.next_item.candidates.settings import PrepareConfig
from ensemble.recipes.next_item.rankings import Rankings
from ensemble.task import Task

RECIPE = "candidates"
KIND = "prepared data"
RANKED = ("validation", "test")
LEARNED = ("train", "validation")
MIN_SEQUENCES = 10
ROWS_AT_ONCE = 1 << 19
FUSION = 60
"""Cormack, Clarke and Büttcher (2009), "Reciprocal rank fusion …", whose choice it is."""
ID_COLUMNS = {"row_id": pa.int64(), "group": pa.int64(), "cluster": pa.int64(), "sequence": pa.int64(), "item": pa.int32()}
MISSED = "target no candidate"
RANKING_FEATURES = {
    "score": ("score of {}", ""),
    "less_best": ("score of {}, less the best one's", ""),
    "place": ("place by {}", ""),
}
FUSION_FEATURES = {
    "num_rankings": ("ranking files that have it among their best", ""),
    "best_place": ("its best place in any of them", ""),
    "fused": ("sum of 1 ÷ (60 + place) over them", ""),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sequences:
    """Those of one split of next_item in the order of their row ids, (num_sequences,), and what each member says of them."""

    row_id: np.ndarray
    user: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    """After the last known event, which is where the target stands."""
    target: np.ndarray
    time: np.ndarray
    """Of the target, in milliseconds."""
    rankings: list[Rankings]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSequences:
    """A split: which sequences it has, by their place among `Sequences`, and the number of each as a group."""

    sequences: Sequences
    at: np.ndarray
    group: np.ndarray


def prepare(config: PrepareConfig) -> dict[str, Any]:
    """Write the prepared folder and return its manifest; `UserError` for what the user can mend."""
    configuration.check(
        config,
        num_candidates=(config.num_candidates >= 2, "at least 2"),
        num_learned=(config.num_learned >= 2, "at least 2"),
        shares=(all(0 < share < np.inf for share in config.shares), "three positive numbers"),
        seed=(config.seed >= 0, "0 or more"),
    )
    about = folders.read_manifest(config.data)
    if about["recipe"] != "next_item":
        raise UserError(f"{config.data} was prepared for the recipe {about['recipe']}: name data of next_item")
    files = _files(config)
    item, time = (Column(open_table(Path(config.data) / "events"), name).all() for name in ("item", "time"))
    sequences = {split: _sequences(config, about, split, files[split], item, time) for split in RANKED}
    members = sequences["validation"].rankings
    if [one.member for one in members] != [one.member for one in sequences["test"].rankings]:
        raise UserError("the ranking files of validation and test are of different members: predict again with all of them")
    column_of = stored_names([one.member for one in members], ())
    has_time, common_clock = about["has_time"], about.get("common_clock", False)
    features = _features(column_of, candidate_features.meanings(has_time, common_clock))
    past = _past(Path(config.data), item, time, has_time=has_time, common_clock=common_clock)
    census, next_row, by_time = Census(), 0, about["config"]["split"] == "time"
    splits: dict[str, dict[str, int]] = {}
    kinds = ID_COLUMNS | {"target": pa.float32()} | {feature["name"]: pa.float32() for feature in features}
    schema = pa.schema([pa.field(name, kind) for name, kind in kinds.items()])
    with folders.new_folder(config.out, config.overwrite, KIND) as folder:
        for name, part in _parts(config, by_time, sequences).items():
            num_hits, generator = 0, np.random.default_rng([config.seed, len(splits) + 1])
            with TableWriter(folder / "rows" / name, schema) as writer:
                for found in _tables(config, name, part, past, about["items"], column_of, generator):
                    found["row_id"] = next_row + np.arange(len(found["item"]))
                    next_row += len(found["item"])
                    num_hits += int(found["target"].sum())
                    writer.write(pa.table({field.name: pa.array(found[field.name], field.type) for field in schema}))
            census.read(len(part.at))
            census.drop(MISSED, len(part.at) - num_hits if name != "test" else 0)
            if num_hits < MIN_SEQUENCES:
                raise UserError(
                    f"the {name} split has {num_hits} sequences whose next item is among their candidates, fewer than "
                    f"{MIN_SEQUENCES}: give more ranking files, raise num_candidates, or change shares"
                )
            splits[name] = {"rows": writer.num_rows, "sequences": len(part.at), "with_target": num_hits}
        task = Task(kind="ranking", target="target", metric="ndcg_at_10", group="group", cluster="cluster")
        return folders.write_manifest(
            folder,
            {
                "kind": KIND,
                "recipe": RECIPE,
                "schema_version": 1,
                "task": dataclasses.asdict(task),
                "target": {"column": "the item that was taken", "names": []},
                "data": about["fingerprint"],
                "sources": folders.sources(sorted(file for split in RANKED for file in files[split])),
                "config": {
                    **{name: getattr(config, name) for name in ("num_candidates", "num_learned", "shares", "seed")},
                    "group": "sequence",
                    "time": "moment" if by_time else "",
                    "embargo": 0,
                },
                "census": census.to_dict(),
                "splits": splits,
                "features": features,
                "left_out": {},
                "rankings": {
                    one.member: {
                        "column": f"{column_of[one.member]}_score",
                        "kind": "baseline" if one.config.get("kind") == "baseline" else "ranking",
                    }
                    for one in members
                },
                "alike": {"recipe": RECIPE, "features": [feature["name"] for feature in features]},
            },
        )


def _files(config: PrepareConfig) -> dict[str, list[Path]]:
    """The ranking files of each split; `UserError` where there are none, and for a member that lacks a split."""
    found: dict[str, dict[str, Path]] = {split: {} for split in RANKED}
    for folder in map(Path, config.rankings):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}: check rankings=[…]")
        for split in RANKED:
            found[split] |= {file.name.removesuffix(f".{split}.parquet"): file for file in folder.glob(f"*.{split}.parquet")}
    names = sorted({name for files in found.values() for name in files})
    if not names:
        where = ", ".join(config.rankings) or "rankings=[]"
        raise UserError(
            f"there is no ranking file in {where}: write some with scripts/predict.py member=… data={config.data}, and name "
            "their folder"
        )
    for name, split in itertools.product(names, RANKED):
        if name not in found[split]:
            rankings.read(next(files[name] for files in found.values() if name in files))  # or it is no ranking at all
            raise UserError(
                f"member {name} has a ranking file of one split, and none of {split}: predict again with "
                "splits=[validation,test]"
            )
    return {split: [files[name] for name in names] for split, files in found.items()}


def _sequences(
    config: PrepareConfig, about: dict[str, Any], split: str, files: list[Path], item: np.ndarray, time: np.ndarray
) -> Sequences:
    """The sequences of a split of next_item; `UserError` for ranking files that are not of it, or too short."""
    members = rankings.read_together(files)
    if members[0].fingerprint != about["fingerprint"]:
        raise UserError(
            f"the ranking files are of data {members[0].fingerprint}, but {config.data} is {about['fingerprint']}: predict "
            "again with this data"
        )
    for file, member in zip(files, members, strict=True):
        if member.split != split:
            raise UserError(f"{file} holds a ranking of {member.split}: name it {member.member}.{member.split}.parquet")
        if config.num_candidates > member.items.shape[1] < about["items"]:
            raise UserError(
                f"num_candidates={config.num_candidates} is more than the {member.items.shape[1]} items of each row of "
                f"{file}: lower it"
            )
    rows = open_table(Path(config.data) / "rows" / split)
    column = {name: Column(rows, name).all() for name in ("row_id", "user", "begin", "end")}
    order = np.argsort(column["row_id"])
    row_id, user, begin, end = (values[order].astype(np.int64) for values in column.values())
    if not np.array_equal(row_id, members[0].row_id) or not np.array_equal(item[end - 1], members[0].target):
        raise UserError(f"the ranking files have not all rows of {split} of {config.data}: predict again")
    return Sequences(
        row_id=row_id,
        user=user,
        begin=begin,
        end=end - 1,
        target=item[end - 1].astype(np.int64),
        time=time[end - 1],
        rankings=members,
    )


def _past(data: Path, item: np.ndarray, time: np.ndarray, *, has_time: bool, common_clock: bool) -> PastEvents:
    user, is_training = np.full(len(item), -1), np.zeros(len(item), bool)
    for split in ("train", *RANKED):
        rows = open_table(data / "rows" / split)
        begin, end, owner = (Column(rows, name).all() for name in ("begin", "end", "user"))
        whole = np.lexsort((end, owner))  # of a user's rows that begin alike, the last is the longest
        whole = whole[np.append(owner[whole][1:] != owner[whole][:-1], True)]
        at, of = ranges(begin[whole], end[whole])
        user[at] = owner[whole][of]
        is_training[at] |= split == "train"
    return PastEvents(item, time, user, is_training, has_time=has_time, common_clock=common_clock)


def _parts(config: PrepareConfig, by_time: bool, sequences: dict[str, Sequences]) -> dict[str, SplitSequences]:
    """Which sequences each split has, in the order of their groups."""
    validation, test = (sequences[split] for split in RANKED)
    shares = np.cumsum(config.shares)[:-1] / sum(config.shares)
    if by_time:
        order, of_test = (np.lexsort((of.row_id, of.time)) for of in (validation, test))
        moment = validation.time[order]
        ends = [int(np.searchsorted(moment, moment[min(int(share * len(order)), len(order) - 1)])) for share in shares]
        groups = np.split(np.arange(len(order)), ends)
        taken = [order[group] for group in groups]
        of_last = len(order) + np.arange(len(of_test))
    else:
        place = np.random.default_rng(config.seed).permutation(
            len(validation.row_id)
        )  # a user has one sequence of each split
        number = np.searchsorted(shares, (place + 0.5) / len(place))
        taken = [np.flatnonzero(number == part) for part in range(len(config.shares))]
        groups = [validation.row_id[at] for at in taken]
        of_test, of_last = np.arange(len(test.row_id)), test.row_id
    parts = {
        name: SplitSequences(sequences=validation, at=at, group=group)
        for name, at, group in zip((*LEARNED, "blend"), taken, groups, strict=True)
    }
    return parts | {"test": SplitSequences(sequences=test, at=of_test, group=of_last)}


def _tables(
    config: PrepareConfig,
    split: str,
    part: SplitSequences,
    past: PastEvents,
    num_items: int,
    column_of: dict[str, str],
    generator: np.random.Generator,
) -> Iterator[dict[str, np.ndarray]]:
    """All columns of a split but row_id, some sequences at a time."""
    of, stride = part.sequences, np.int64(num_items + 1)
    at_once = max(1, ROWS_AT_ONCE // (len(of.rankings) * config.num_candidates))
    for first in range(0, len(part.at), at_once):
        at = part.at[first : first + at_once]
        begin, end, number = of.begin[at], of.end[at], np.arange(len(at))
        # A candidate is one number, the place of its sequence here and its item: these are sorted, and found by search
        shown = [_keys(number, one.items[at, : config.num_candidates], stride) for one in of.rankings]
        known, owner = ranges(begin, end)
        taken = np.unique(owner * stride + past.item[known])
        key = np.setdiff1d(np.concatenate([keys[keys >= 0] for keys in shown]), taken)
        target_key = number * stride + of.target[at]
        if split != "test":
            key = key[np.isin(target_key, key)[key // stride]]
        if split in LEARNED:
            key = _subsampled(key, key // stride, np.isin(key, target_key), config.num_learned, generator)
        owner, item = np.divmod(key, stride)
        found = {
            "group": part.group[first : first + at_once][owner],
            "cluster": of.user[at][owner],
            "sequence": of.row_id[at][owner],
            "item": item,
            "target": np.isin(key, target_key).astype(np.float32),
            **past.features(begin, end, owner, item),
        }
        places = []
        for one, keys in zip(of.rankings, shown, strict=True):
            score, place = _scores_and_places(key, keys, one.scores[at, : config.num_candidates])
            name = column_of[one.member]
            found[f"{name}_score"], found[f"{name}_place"] = score, place
            found[f"{name}_less_best"] = score - one.scores[at, 0][owner]
            places.append(place)
        place = np.stack(places)
        found["num_rankings"] = np.isfinite(place).sum(0)
        found["best_place"] = np.nanmin(place, axis=0) if place.size else place.sum(0)
        found["fused"] = np.nansum(1 / (FUSION + place), axis=0)
        yield found


def _keys(number: np.ndarray, items: np.ndarray, stride: np.int64) -> np.ndarray:
    """(num_sequences * num_candidates,): the number of each item shown, -1 where there is none."""
    return np.where(items > 0, number[:, None] * stride + items, -1).ravel()


def _subsampled(
    key: np.ndarray, owner: np.ndarray, is_target: np.ndarray, most: int, generator: np.random.Generator
) -> np.ndarray:
    """Of each sequence the target and others drawn at random, `most` in all; in the same order."""
    draw = np.where(is_target, -1.0, generator.random(len(key)))
    order = np.lexsort((draw, owner))
    place = np.arange(len(key)) - np.searchsorted(owner, owner)
    return np.sort(key[order[place < most]])


def _scores_and_places(key: np.ndarray, shown: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Score and place, from 1 on, of each candidate in one ranking file, float32, NaN where it is not shown."""
    at = np.minimum(np.searchsorted(key, shown), len(key) - 1) if len(key) else np.zeros(0, int)
    here = np.flatnonzero(key[at] == shown) if len(key) else at
    score, place = (np.full(len(key), np.nan, np.float32) for _ in range(2))
    score[at[here]], place[at[here]] = scores.ravel()[here], here % scores.shape[1] + 1
    return score, place


def _features(column_of: dict[str, str], of_items: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """The entry `features` of the manifest."""
    named = {
        f"{column}_{name}": (words.format(member), unit)
        for member, column in column_of.items()
        for name, (words, unit) in RANKING_FEATURES.items()
    }
    return [
        {"name": name, "column": name, "meaning": meaning, "unit": unit, "source": "candidates"}
        for name, (meaning, unit) in (named | FUSION_FEATURES | of_items).items()
    ]
