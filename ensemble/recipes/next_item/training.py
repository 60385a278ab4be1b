"""Training of the next_item network: SASRec or TiSASRec, with or without mHC, predicts the next item of a user.

    python scripts/prepare_data.py --recipe next_item 'source=[beauty.txt.gz]' out=runs/beauty/prepared
    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe next_item \
        data=runs/beauty/prepared out=runs/beauty/sasrec

All items are ranked except those that the user took before. Items with equal scores are in the order of
`item_ranks.tie_key`. If the target itself was taken before, or is unknown as in the split forecast, its rank is infinite.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ensemble import configuration
from ensemble.arrow import Column, open_table, ranges
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError
from ensemble.neural.loader import Batch
from ensemble.neural.prepared import PreparedRecipe, PreparedRows
from ensemble.neural.settings import check_heads
from ensemble.recipe import RANKING, Size
from ensemble.recipes.next_item import item_metrics, losses
from ensemble.recipes.next_item.item_ranks import NUM_SAMPLED, NUM_TOP, places, sampled_items
from ensemble.recipes.next_item.model import SequenceModel
from ensemble.recipes.next_item.settings import RecipeConfig

NUM_GROUPS_ON_CPU = 8
PER_TARGET_NEGATIVES = ("bce", "gbce")
"""Losses with negatives for each target, sampled from items that are not in the user's training history."""
NO_ITEM = np.int64(1) << 40
"""Fills `taken.g`; larger than all item numbers."""


class SequenceRows(PreparedRows):
    """The rows of one split; `gather` makes a batch with array operations, without a loop over rows."""

    def __init__(self, folder: Path, split: str, config: RecipeConfig, num_groups: int):
        rows, events = open_table(folder / "rows" / split), open_table(folder / "events")
        self.columns = {name: Column(rows, name) for name in ("row_id", "user", "begin", "end")}
        self.item, self.time = Column(events, "item"), Column(events, "time")
        self.is_training, self.is_forecast = split == "train", split == FORECAST
        self.max_length, self.num_groups = config.max_length, num_groups
        self.needs_taken = config.loss in PER_TARGET_NEGATIVES
        self.time_aware, self.num_items = config.time_aware, len(open_table(folder / "items"))
        length = self.columns["end"].all() - self.columns["begin"].all() - (not self.is_forecast)
        assert (length >= 1).all(), "prepare.py writes only rows with an event before the target"
        self.lengths = np.minimum(length, config.max_length)

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        """The inputs of `SequenceModel.forward`, int64 tensors, for B = len(rows) sequences, and:

        train: `target` (T,), the item after each position; for `PER_TARGET_NEGATIVES` also `taken.g`, (sequences of group g,
        most distinct items of one), see `losses.draw_negatives`.
        validation, test: `target` (B,); `seen_row` and `seen_item`, all items before the target; `sampled` (B, 100), items
        that are not in the sequence; `length` (B,) of the whole history. `places` are in the order of `rows`.
        forecast: the same, with 0 for all targets and sampled items.
        """
        first, last = self.columns["begin"].take(rows), self.columns["end"].take(rows) - (not self.is_forecast)
        begin = np.maximum(first, last - self.max_length)
        length = last - begin
        batch: dict[str, np.ndarray] = {}
        places, targets, offset = [], [], 0
        order = np.argsort(length, kind="stable")
        place_of_row = np.empty(len(rows), np.int64)
        for number, group in enumerate(np.array_split(order, min(self.num_groups, len(rows)))):
            event, row = ranges(begin[group], last[group])
            longest = length[group].max()
            position = event - begin[group][row]
            items = np.zeros((len(group), longest), np.int64)
            items[row, position] = self.item.take(event)
            batch[f"items.{number}"] = items
            if self.time_aware:
                times = np.zeros_like(items)
                times[row, position] = _in_shortest_gaps(self.time.take(event), row, len(group))
                batch[f"times.{number}"] = times
            if self.is_training:
                places.append(row * longest + position + offset)
                targets.append(self.item.take(event + 1))
                if self.needs_taken:
                    event, row = ranges(first[group], last[group] + 1)  # the whole history, not only the last max_length
                    batch[f"taken.{number}"] = _taken(self.item.take(event), row)
            else:
                place_of_row[group] = np.arange(len(group)) * longest + length[group] - 1 + offset
            offset += items.size
        if self.is_training:
            batch |= {"places": np.concatenate(places), "target": np.concatenate(targets)}
        else:
            event, row = ranges(first, last)
            seen, target = self.item.take(event), np.zeros(len(rows), np.int64)
            sampled = np.zeros((len(rows), NUM_SAMPLED), np.int64)
            if not self.is_forecast:
                target, row_of_taken = self.item.take(last), np.append(row, np.arange(len(rows)))
                row_id = self.columns["row_id"].take(rows)
                sampled = sampled_items(row_id, row_of_taken, np.append(seen, target), self.num_items)
            batch |= {
                "places": place_of_row,
                "target": target,
                "seen_row": row,
                "seen_item": seen,
                "sampled": sampled,
                "length": last - first,
            }
        return {name: torch.from_numpy(np.ascontiguousarray(array, np.int64)) for name, array in batch.items()}


class NextItem(PreparedRecipe[RecipeConfig, SequenceRows]):
    """The methods of `recipe.NeuralRecipe` for next_item. Raises `UserError` if the settings do not fit the data."""

    name = "next_item"
    monitor, higher_is_better = "ndcg_at_10", True
    output = RANKING

    def __init__(self, config: RecipeConfig, data: str | Path):
        super().__init__(config, data)
        configuration.check(
            config,
            "recipe.",
            at_least_1="max_length width num_heads widening num_intervals num_negatives",
            at_least_0="num_streams negative_power num_groups",
            fractions="gbce_calibration",
            # Only attention uses the vectors of positions and intervals, and with several ranks each needs a gradient
            num_layers=(
                config.num_layers >= config.time_aware,
                "at least 1 with recipe.time_aware=true" if config.time_aware else "0 or more",
            ),
            dropout=(0 <= config.dropout < 1, "0 or more and below 1"),
            time_aware=(
                self.manifest["has_time"] or not config.time_aware,
                f"false, since the data of {data} have no times",
            ),
        )
        check_heads(config.width, config.num_heads)
        self.count = torch.from_numpy(open_table(self.folder / "items")["count"].to_numpy().astype(np.int64))
        self._sampler: losses.Sampler | None = None
        self._place_V = torch.from_numpy(np.append(-1, places(self.manifest["items"])).astype(np.int32))
        _refuse_unknown_items(self.folder, self.manifest["items"])

    def open_rows(self, split: str) -> SequenceRows:
        num_groups = self.config.num_groups or (1 if torch.cuda.is_available() else NUM_GROUPS_ON_CPU)
        return SequenceRows(self.folder, split, self.config, num_groups)

    def model(self) -> torch.nn.Module:
        config = self.config
        return SequenceModel(
            num_items=self.manifest["items"],
            max_length=config.max_length,
            width=config.width,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            dropout=config.dropout,
            widening=config.widening,
            num_intervals=config.num_intervals if config.time_aware else 0,
            num_streams=config.num_streams,
        )

    def size(self, num_rows: int) -> Size:
        """A lower bound: parameters, activations of the layers, and the embeddings or scores of sampled negatives."""
        config, num_items = self.config, self.manifest["items"]
        width, layers, streams = config.width, config.num_layers, config.num_streams
        num_times = 2 * (config.max_length + config.num_intervals) if config.time_aware else config.max_length
        mappings = 2 * streams * (streams + 2) * (streams * width + 1)
        num_parameters = (num_items + 1 + num_times + 2) * width + layers * (
            (4 + 2 * config.widening) * width**2 + (9 + config.widening) * width + mappings + 6 * bool(streams)
        )
        longest = np.sort(self.rows("train").lengths)[-num_rows:].astype(float)
        positions, pairs = longest.sum(), (longest**2).sum()
        activations = positions * width * (1 + layers * (6 + 2 * config.widening) * max(1, streams // 2))
        activations += layers * config.num_heads * pairs if config.time_aware or config.dropout else 0
        if config.loss in PER_TARGET_NEGATIVES:
            activations += positions * config.num_negatives * width
        elif config.loss == "sampled_softmax":
            activations += positions * config.num_negatives
        settings = ("width", "num_layers", "max_length", "num_streams", "num_negatives")
        return Size(
            num_parameters=num_parameters,
            batch_bytes=int(4 * activations),
            settings=tuple(f"recipe.{name}" for name in settings),
        )

    def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Return the sum of the losses of all positions, the number of positions, and `state`, which is not used.

        The gradient of cross_entropy does not depend on the micro-batch size or the number of ranks. For the other losses
        this is true only in expectation, since negatives are sampled for each micro-batch.
        """
        loss = model(batch, partial(self._loss, batch))
        return loss, torch.tensor(float(len(batch["target"])), device=loss.device), state

    def _loss(self, batch: Batch, hidden_TD: torch.Tensor, item_VD: torch.Tensor) -> torch.Tensor:
        config, target_T = self.config, batch["target"]
        if config.loss == "cross_entropy":
            return losses.cross_entropy(hidden_TD, item_VD, target_T)
        if config.loss == "sampled_softmax":
            if self._sampler is None:
                self._sampler = losses.Sampler(self.count.to(hidden_TD.device), config.negative_power)
            return losses.sampled_softmax(hidden_TD, item_VD, target_T, config.num_negatives, self._sampler)
        negative_TN = losses.draw_negatives(batch, self.manifest["items"], config.num_negatives)
        share = config.num_negatives / (self.manifest["items"] - 1)
        power = losses.gbce_power(share, config.gbce_calibration) if config.loss == "gbce" else 1.0
        return losses.binary_cross_entropy(hidden_TD, item_VD, target_T, negative_TN, power)

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        """The columns of a ranking file (see rankings.py), with the best `NUM_TOP` items of each row.

        `prediction` is the reciprocal of the rank, 0 for an infinite rank. Both are NaN if a score is not finite.
        """
        score_BV = model(batch, _scores)
        target_B1 = batch["target"][:, None]
        target_score_B1 = score_BV.gather(1, target_B1)
        score_BV[:, 0] = -torch.inf
        place_V = self._place_V = self._place_V.to(score_BV.device)
        target_place_B1, sampled_BS = place_V[target_B1], batch["sampled"]
        rank_of_101_B = _rank(target_score_B1, target_place_B1, score_BV.gather(1, sampled_BS), place_V[sampled_BS])
        score_BV[batch["seen_row"], batch["seen_item"]] = -torch.inf
        is_taken_B = score_BV.gather(1, target_B1)[:, 0] == -torch.inf
        rank_B = _rank(target_score_B1, target_place_B1, score_BV, place_V).masked_fill(is_taken_B, torch.inf)
        best = score_BV.topk(min(NUM_TOP, self.manifest["items"]), dim=1)
        is_shown = best.values > -torch.inf
        lowest_B1 = best.values.where(is_shown, torch.inf).amin(1, keepdim=True).masked_fill(~is_shown[:, :1], 0)
        # topk sorts NaN first; −∞ is first if the user took all items
        is_finite_B = target_score_B1[:, 0].isfinite() & (best.values[:, 0] < torch.inf)
        return {
            "prediction": torch.where(is_finite_B, 1 / rank_B, torch.nan),
            "rank": torch.where(is_finite_B, rank_B, torch.nan),
            "rank_of_101": rank_of_101_B,
            "target": batch["target"],
            "length": batch["length"],
            "items": best.indices.where(is_shown, 0).int(),
            "scores": best.values.where(is_shown, lowest_B1),
        }

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        """Scores of the ranks among all items; see `item_metrics.item_scores`."""
        rank, items, target = (predictions[name] for name in ("rank", "items", "target"))
        return item_metrics.item_scores(rank, items, target, self.count.numpy())

    def describe(self, split: str) -> dict[str, np.ndarray]:
        """Row id, group and cluster of each row; group and cluster are the user."""
        columns = self.rows(split).columns
        user = columns["user"].all()
        return {"row_id": columns["row_id"].all(), "group": user, "cluster": user}


make = NextItem


def _rank(
    target_B1: torch.Tensor, target_place_B1: torch.Tensor, other_BN: torch.Tensor, place: torch.Tensor
) -> torch.Tensor:
    """The rank of the target among other items, from 1 on; (B,) float32.

    target_B1, other_BN : scores. target_place_B1, place : `item_ranks.places`, the latter (B, N), or (N,) for all rows.
    """
    is_before_BN = (other_BN > target_B1) | ((other_BN == target_B1) & (place > target_place_B1))
    return 1 + is_before_BN.sum(1, dtype=torch.int32).float()  # int64 takes three times as long


def _scores(hidden_BD: torch.Tensor, item_VD: torch.Tensor) -> torch.Tensor:
    with torch.autocast(hidden_BD.device.type, enabled=False):  # bf16 would round different scores to ties
        return hidden_BD.float() @ item_VD.float().T


def _refuse_unknown_items(folder: Path, num_items: int) -> None:
    item = Column(open_table(folder / "events"), "item").all()
    for number in (int(item.min()), int(item.max())):
        if not 1 <= number <= num_items:
            raise UserError(
                f"events of {folder} are of item {number}, but items are numbered from 1 to {num_items}: prepare them again"
            )


def _in_shortest_gaps(time: np.ndarray, row: np.ndarray, num_rows: int) -> np.ndarray:
    """Time since the first item of each sequence, in units of the sequence's shortest positive gap, rounded; (n,) int64.

    row : (n,), the index of each item's sequence, ascending.
    """
    gap = np.diff(time)
    is_positive = (row[1:] == row[:-1]) & (gap > 0)
    shortest = np.full(num_rows, np.iinfo(np.int64).max)
    np.minimum.at(shortest, row[1:][is_positive], gap[is_positive])
    since = time - time[np.searchsorted(row, row)]
    return np.rint(since / shortest[row]).astype(np.int64)


def _taken(item: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The distinct items of each row, ascending, minus their index in the row; filled with `NO_ITEM`; (B, most items).

    item, row : (n,), the items of all rows, and the row of each.
    """
    stride = np.int64(item.max()) + 1
    row, item = np.divmod(np.unique(row * stride + item), stride)
    index = np.arange(len(row)) - np.searchsorted(row, row)
    table = np.full((row[-1] + 1, index.max() + 1), NO_ITEM)
    table[row, index] = item - index
    return table
