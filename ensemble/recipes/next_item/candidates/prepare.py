"""Prepares candidates: a table of the items that next_item members rank highest, which trees and an ensemble rerank.

    python scripts/prepare_data.py --recipe candidates data=runs/beauty/prepared 'rankings=[runs/beauty/rankings]' \\
        out=runs/beauty/candidates

The candidates of a sequence are the best items of each ranking file, without items that its user took before. (A ranking
file of another program may have them.) `rows/<split>` has a row for each candidate:

    row_id    number of the row; in forecast, the candidates of a group are in the order of `item_ranks.tie_key`
    group     the sequence: its row id; with split=time a number that increases with the time of the target
    cluster   the user
    sequence  row id of the sequence in the data of next_item
    item      number of the candidate
    target    1 for the next item, else 0; NaN in forecast
    features: for each ranking file the item's score, its score minus the best score of the sequence, and its place, NaN if
              the item is not among the file's best `num_candidates`; three features over all ranking files; and those of
              features.py

Members were trained on the train split only, so their predictions for validation are out of sample, except that early
stopping used validation. The validation sequences are divided into train, validation and blend: by user, or with split=time
forward in time, with no time in two splits. Test stays test. A sequence whose target is not a candidate is used only in
test, where compare_rankings.py gives it the score 0. The scores of the ensemble leave it out, and the model card states
this. In train and validation, only a sample of the candidates is kept. There is a split forecast if all members have a
ranking file of it.
"""

import dataclasses
import filecmp
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble import configuration, folders
from ensemble.arrow import TableWriter, open_table, ranges, read_columns, stored_names, write_table
from ensemble.data.census import Census
from ensemble.data.inputs import FORECAST
from ensemble.errors import TooFewRows, UserError
from ensemble.recipes.next_item import rankings
from ensemble.recipes.next_item.candidates import features as candidate_features
from ensemble.recipes.next_item.candidates.features import PastEvents
from ensemble.recipes.next_item.candidates.settings import PrepareConfig
from ensemble.recipes.next_item.item_ranks import tie_key
from ensemble.recipes.next_item.rankings import Rankings
from ensemble.task import Task

RECIPE = "candidates"
RANKED = ("validation", "test")
"""The splits of next_item whose ranking files are needed."""
MOST_PER_GROUP = 10
"""Number of items of each user in the forecast of an ensemble."""
IDS = ("users", "items")
"""The tables of next_item with the ids in the raw data, which are copied."""
LEARNED = ("train", "validation")
"""The splits of candidates that keep only a sample of the candidates."""
MIN_SEQUENCES = 10
"""Smallest number of sequences of a split whose target is a candidate."""
ROWS_AT_ONCE = 1 << 19
FUSION = 60
"""The constant of the feature `fused`, as in Cormack, Clarke and Büttcher (2009), "Reciprocal rank fusion …"."""
ID_COLUMNS = {"row_id": pa.int64(), "group": pa.int64(), "cluster": pa.int64(), "sequence": pa.int64(), "item": pa.int32()}
MISSED = "target is not a candidate"
RANKING_FEATURES = {
    "score": ("score of {}", ""),
    "less_best": ("score of {} minus the best score of the sequence", ""),
    "place": ("place by {}", ""),
}
FUSION_FEATURES = {
    "num_rankings": ("ranking files with the item among their best", ""),
    "best_place": ("best place of the item in any ranking file", ""),
    "fused": ("sum of 1 ÷ (60 + place) over the ranking files", ""),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sequences:
    """The sequences of one split of next_item, in the order of their row ids, and all ranking files of them.

    All arrays have shape (num_sequences,).
    """

    row_id: np.ndarray
    user: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    """The events before the target are [begin, end); except in forecast, `end` is the index of the target."""
    rankings: list[Rankings]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSequences:
    """The sequences of a split of candidates: the index of each in `sequences`, and the number of its group."""

    sequences: Sequences
    index: np.ndarray
    group: np.ndarray


def prepare(config: PrepareConfig) -> dict[str, Any]:
    """Write the prepared folder and return its manifest. Raises `UserError` for settings and files that cannot be used."""
    configuration.check(
        config,
        at_least_0="seed",
        num_candidates=(config.num_candidates >= 2, "at least 2"),
        num_learned=(config.num_learned >= 2, "at least 2"),
        shares=(all(0 < share < np.inf for share in config.shares), "three positive numbers"),
    )
    manifest = folders.read_manifest(config.data)
    if manifest["recipe"] != "next_item":
        raise UserError(f"{config.data} was prepared for the recipe {manifest['recipe']}: set data= to data of next_item")
    files = _files(config)
    item, time = read_columns(Path(config.data) / "events", ("item", "time")).values()
    sequences = {split: _sequences(config, manifest, split, files[split], item) for split in files}
    members = sequences["validation"].rankings
    names = [file.member for file in members]
    if names != [file.member for file in sequences["test"].rankings]:
        raise UserError(
            "the ranking files of validation and test are of different members: predict both splits with every member"
        )
    for file, other in (pair for part in sequences.values() for pair in zip(members, part.rankings, strict=True)):
        if file.config.get("model") != other.config.get("model"):
            raise UserError(
                f"the ranking files of {file.member} for validation and {other.split} are of different models, as after a "
                "second training: predict both splits again"
            )
    # A member named `best` would have a column best_place, which is the name of another feature
    column_of = dict(zip(names, stored_names(names, ("best",)), strict=True))
    has_time, common_clock = manifest["has_time"], manifest.get("common_clock", False)
    features = _features(column_of, candidate_features.meanings(has_time, common_clock))
    past = _past(Path(config.data), item, time, has_time=has_time, common_clock=common_clock)
    census, by_time = Census(), manifest["config"]["split"] == "time"
    schema = pa.schema(ID_COLUMNS | dict.fromkeys(["target", *(feature["name"] for feature in features)], pa.float32()))
    with folders.new_folder(config.out, config.overwrite, folders.PREPARED) as folder:
        for name in IDS:
            write_table(folder / name, open_table(Path(config.data) / name))
        parts = split_sequences(config, by_time, sequences, time)
        splits = _write_splits(folder, config, parts, past, manifest["items"], column_of, schema, census)
        task = Task(kind="ranking", target="target", metric="ndcg_at_10", group="group", cluster="cluster")
        return folders.write_manifest(
            folder,
            {
                **folders.first_entries(RECIPE, 1, task),
                "target": {"column": "the item that was taken", "names": []},
                "data": manifest["fingerprint"],
                "sources": folders.sources(sorted(itertools.chain(*files.values()))),
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
                    file.member: {
                        "column": f"{column_of[file.member]}_score",
                        "kind": "baseline" if file.config.get("kind") == "baseline" else "ranking",
                    }
                    for file in members
                },
                "most_per_group": MOST_PER_GROUP,
                "alike": {"recipe": RECIPE, "features": [feature["name"] for feature in features]},
            },
        )


def _write_splits(
    folder: Path,
    config: PrepareConfig,
    parts: dict[str, SplitSequences],
    past: PastEvents,
    num_items: int,
    column_of: dict[str, str],
    schema: pa.Schema,
    census: Census,
) -> dict[str, dict[str, int]]:
    """Write the rows of each split; returns the entry `splits` of the manifest."""
    splits: dict[str, dict[str, int]] = {}
    next_row = 0
    for name, split in parts.items():
        num_hits, generator = 0, np.random.default_rng([config.seed, len(splits) + 1])
        with TableWriter(folder / "rows" / name, schema) as writer:
            for table in _tables(config, name, split, past, num_items, column_of, generator):
                table["row_id"] = next_row + np.arange(len(table["item"]))
                next_row += len(table["item"])
                num_hits += int(np.nansum(table["target"]))
                writer.write(pa.table({field.name: pa.array(table[field.name], field.type) for field in schema}))
        splits[name] = {"rows": writer.num_rows, "sequences": len(split.index)}
        if name == FORECAST:
            if not writer.num_rows:  # all users took all candidates
                shutil.rmtree(folder / "rows" / name)
                del splits[name]
            continue
        census.read(len(split.index))
        census.drop(MISSED, len(split.index) - num_hits if name != "test" else 0)
        if num_hits < MIN_SEQUENCES:
            raise TooFewRows(
                f"the {name} split has {num_hits} sequences whose next item is among their candidates, fewer than "
                f"{MIN_SEQUENCES}",
                "give more ranking files, raise num_candidates, or change shares",
            )
        splits[name]["with_target"] = num_hits
    return splits


def _files(config: PrepareConfig) -> dict[str, list[Path]]:
    """The ranking files of each split; of forecast only if all members have one.

    Raises `UserError` if there are none, if a member lacks a split, and if two folders have different files of one name.
    """
    files_of: dict[str, dict[str, Path]] = {split: {} for split in (*RANKED, FORECAST)}
    for folder in map(Path, config.rankings):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}: check rankings=[…]")
        for split in files_of:
            suffix = f".{split}.parquet"
            for file in folder.glob(f"*{suffix}"):
                first = files_of[split].setdefault(file.name.removesuffix(suffix), file)
                # Copies, such as those of a baseline, may be in both folders
                if first != file and not filecmp.cmp(first, file, shallow=False):
                    raise UserError(
                        f"{first} and {file} are different ranking files of members with one name: predict again with "
                        "name=… for one of them, or leave one folder out"
                    )
    names = sorted({name for files in files_of.values() for name in files})
    if not names:
        where = ", ".join(config.rankings) or "rankings=[]"
        raise UserError(
            f"there is no ranking file in {where}: write some with scripts/predict.py member=… data={config.data}, and give "
            "their folder"
        )
    for name, split in itertools.product(names, RANKED):
        if name not in files_of[split]:
            # If the file is no ranking file, `read` raises an error that says so
            rankings.read(next(files[name] for files in files_of.values() if name in files))
            raise UserError(
                f"member {name} has no ranking file of {split}: predict again with splits=[{','.join(files_of)}]"
            )
    if len(files_of[FORECAST]) < len(names):
        del files_of[FORECAST]
    return {split: [files[name] for name in names] for split, files in files_of.items()}


def _sequences(
    config: PrepareConfig, manifest: dict[str, Any], split: str, files: list[Path], item: np.ndarray
) -> Sequences:
    """The sequences of a split of next_item. Raises `UserError` for ranking files of other rows, or with too few items."""
    members = rankings.read_together(files)
    if members[0].fingerprint != manifest["fingerprint"]:
        raise UserError(
            f"the ranking files are of data with the fingerprint {members[0].fingerprint}, but {config.data} has the "
            f"fingerprint {manifest['fingerprint']}: predict again with this data"
        )
    for file, member in zip(files, members, strict=True):
        if member.split != split:
            raise UserError(f"{file} holds a ranking of {member.split}: name it {member.member}.{member.split}.parquet")
        if config.num_candidates > member.items.shape[1] < manifest["items"]:
            raise UserError(
                f"num_candidates={config.num_candidates} is more than the {member.items.shape[1]} items of each row of "
                f"{file}: lower it"
            )
        rankings.check_items(member, manifest["items"])
    rows = read_columns(Path(config.data) / "rows" / split, ("row_id", "user", "begin", "end"))
    order = np.argsort(rows["row_id"])
    row_id, user, begin, end = (values[order].astype(np.int64) for values in rows.values())
    has_all_rows = np.array_equal(row_id, members[0].row_id)
    if not has_all_rows or (split != FORECAST and not np.array_equal(item[end - 1], members[0].target)):
        raise UserError(f"the ranking files do not have all rows of {split} of {config.data}: predict again")
    return Sequences(row_id=row_id, user=user, begin=begin, end=end - (split != FORECAST), rankings=members)


def _past(data: Path, item: np.ndarray, time: np.ndarray, *, has_time: bool, common_clock: bool) -> PastEvents:
    """The events of all sequences, from which features are computed."""
    user, is_training = np.full(len(item), -1), np.zeros(len(item), bool)
    for split in ("train", *RANKED):
        begin, end, row_user = read_columns(data / "rows" / split, ("begin", "end", "user")).values()
        order = np.lexsort((end, row_user))  # the last row of a user contains the user's other rows
        longest = order[np.append(row_user[order][1:] != row_user[order][:-1], True)]
        event, row = ranges(begin[longest], end[longest])
        user[event] = row_user[longest][row]
        is_training[event] |= split == "train"
    return PastEvents(item, time, user, is_training, has_time=has_time, common_clock=common_clock)


def split_sequences(
    config: PrepareConfig, by_time: bool, sequences: dict[str, Sequences], time: np.ndarray
) -> dict[str, SplitSequences]:
    """The sequences of each split, in the order of their groups. time : the times of all events."""
    validation = sequences["validation"]
    shares = np.cumsum(config.shares)[:-1] / sum(config.shares)
    if by_time:
        order = np.lexsort((validation.row_id, time[validation.end]))
        ordered = time[validation.end[order]]
        ends = [int(np.searchsorted(ordered, ordered[min(int(share * len(order)), len(order) - 1)])) for share in shares]
        groups = np.split(np.arange(len(order)), ends)
        indices = [order[group] for group in groups]
    else:
        num = len(validation.row_id)
        shuffled = np.random.default_rng(config.seed).permutation(num)  # each user has one sequence in validation
        number = np.searchsorted(shares, (shuffled + 0.5) / num)
        indices = [np.flatnonzero(number == part) for part in range(len(config.shares))]
        groups = [validation.row_id[index] for index in indices]
    splits = {
        name: SplitSequences(sequences=validation, index=index, group=group)
        for name, index, group in zip((*LEARNED, "blend"), indices, groups, strict=True)
    }
    num_groups = len(validation.row_id)
    for name, part in sequences.items():
        if name == "validation":
            continue
        index, group = np.arange(len(part.row_id)), part.row_id
        if by_time:
            index = np.lexsort((part.row_id, time[part.end - (name == FORECAST)]))
            group = num_groups + np.arange(len(index))
            num_groups += len(index)
        splits[name] = SplitSequences(sequences=part, index=index, group=group)
    return splits


def _tables(
    config: PrepareConfig,
    name: str,
    split: SplitSequences,
    past: PastEvents,
    num_items: int,
    column_of: dict[str, str],
    generator: np.random.Generator,
) -> Iterator[dict[str, np.ndarray]]:
    """Tables of the candidates of some sequences at a time, with all columns except row_id."""
    sequences, stride = split.sequences, np.int64(num_items + 1)
    block_size = max(1, ROWS_AT_ONCE // (len(sequences.rankings) * config.num_candidates))
    for first in range(0, len(split.index), block_size):
        index = split.index[first : first + block_size]
        begin, end, number = sequences.begin[index], sequences.end[index], np.arange(len(index))
        # The key of a candidate is the number of its sequence in this block times stride, plus its item
        items_of = [file.items[index, : config.num_candidates] for file in sequences.rankings]
        keys_of = [np.where(items > 0, number[:, None] * stride + items, -1).ravel() for items in items_of]
        event, owner = ranges(begin, end)
        taken = owner * stride + past.item[event]
        key = np.setdiff1d(np.concatenate([keys[keys >= 0] for keys in keys_of]), taken)
        target_key = np.full(len(index), -1) if name == FORECAST else number * stride + past.item[end]
        if name not in ("test", FORECAST):
            key = key[np.isin(target_key, key)[key // stride]]
        if name in LEARNED:
            key = _subsampled(key, key // stride, np.isin(key, target_key), config.num_learned, generator)
        owner, item = np.divmod(key, stride)
        table = {
            "group": split.group[first : first + block_size][owner],
            "cluster": sequences.user[index][owner],
            "sequence": sequences.row_id[index][owner],
            "item": item,
            "target": np.isin(key, target_key).astype(np.float32) if name != FORECAST else np.full(len(key), np.nan),
            **past.features(begin, end, owner, item),
        }
        places = []
        for file, keys in zip(sequences.rankings, keys_of, strict=True):
            score, place = _scores_and_places(key, keys, file.scores[index, : config.num_candidates])
            column = column_of[file.member]
            table[f"{column}_score"], table[f"{column}_place"] = score, place
            table[f"{column}_less_best"] = score - file.scores[index, 0][owner]
            places.append(place)
        place = np.stack(places)
        table["num_rankings"] = np.isfinite(place).sum(0)
        table["best_place"] = np.nanmin(place, axis=0)
        table["fused"] = np.nansum(1 / (FUSION + place), axis=0)
        if name == FORECAST:  # of equal predictions, that of the row with the lower id is first in the forecast
            order = np.lexsort((tie_key(item), owner))
            table = {column: values[order] for column, values in table.items()}
        yield table


def _subsampled(
    key: np.ndarray, owner: np.ndarray, is_target: np.ndarray, most: int, generator: np.random.Generator
) -> np.ndarray:
    """The keys of each sequence's target and of a random sample of its other candidates, at most `most` per sequence;
    sorted."""
    draw = np.where(is_target, -1.0, generator.random(len(key)))
    order = np.lexsort((draw, owner))
    place = np.arange(len(key)) - np.searchsorted(owner, owner)
    return np.sort(key[order[place < most]])


def _scores_and_places(key: np.ndarray, file_key: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Score and place (from 1 on) of each candidate in a ranking file, float32, NaN if it is not in the file.

    key : (n,), ascending keys of the candidates. file_key : the keys of all items of the file, −1 for none, in the order of
    `scores`, (num_sequences, K).
    """
    score, place = (np.full(len(key), np.nan, np.float32) for _ in range(2))
    if len(key):
        row = np.minimum(np.searchsorted(key, file_key), len(key) - 1)
        match = np.flatnonzero(key[row] == file_key)
        score[row[match]], place[row[match]] = scores.ravel()[match], match % scores.shape[1] + 1
    return score, place


def _features(column_of: dict[str, str], item_features: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """The entry `features` of the manifest."""
    ranking_features = {
        f"{column}_{name}": (words.format(member), unit)
        for member, column in column_of.items()
        for name, (words, unit) in RANKING_FEATURES.items()
    }
    return [
        {"name": name, "column": name, "meaning": meaning, "unit": unit, "source": "candidates"}
        for name, (meaning, unit) in (ranking_features | FUSION_FEATURES | item_features).items()
    ]
