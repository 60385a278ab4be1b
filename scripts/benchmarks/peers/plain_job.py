"""Hot products from raw reviews with pandas, torch, XGBoost, LightGBM and scikit-learn, as a script for a single use.

    python plain_job.py reviews.jsonl meta.jsonl OUT 2022-06-06 2022-11-21 2023-05-15

The dates are the first Mondays of validation, blend and test. The rows and labels are those of the recipe hot_sellers. The
benchmark peers_job compares it with scripts/fit.py, so it imports nothing of this project.
"""

import json
import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import torch
import xgboost
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

HORIZON, BASE, TOP, HISTORY = 12, 4, 0.05, 52
WEEK_MS, MONDAY_MS = 7 * 24 * 3600 * 1000, 4 * 24 * 3600 * 1000
WINDOWS = (1, 2, 4, 8, 12, 26, 52)


def week_of(date: str) -> int:
    return (pd.Timestamp(date).value // 10**6 - MONDAY_MS) // WEEK_MS


def read(reviews_file: str, products_file: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    with open(reviews_file) as lines:
        reviews = pd.DataFrame(json.loads(line) for line in lines)
    reviews = reviews.drop_duplicates(["user_id", "parent_asin", "timestamp"])
    reviews["week"] = (reviews["timestamp"] - MONDAY_MS) // WEEK_MS
    reviews["images"] = reviews["images"].str.len() > 0
    products = pd.read_json(products_file, lines=True).drop_duplicates("parent_asin").set_index("parent_asin")
    return reviews, products


def window(values: np.ndarray, length: int, ago: int = 0) -> np.ndarray:
    """For each week t, sums of `values` (products, weeks) over the weeks in (t - ago - length, t - ago]."""
    total = np.pad(values.cumsum(1), ((0, 0), (length + ago + 1, 0)))
    num_weeks = values.shape[1]
    return total[:, length + 1 :][:, :num_weeks] - total[:, 1:][:, :num_weeks]


def text_topics(
    reviews: pd.DataFrame, product: np.ndarray, week: np.ndarray, shape: tuple[int, int], until: int
) -> np.ndarray:
    """Mean topics of the reviews of the last 4 weeks, (products, weeks, 32), learned from texts before week `until`."""
    texts = reviews["title"] + " " + reviews["text"]
    words = TfidfVectorizer(min_df=5, sublinear_tf=True).fit(texts[week < until])
    matrix = words.transform(texts)
    cells = sparse.csr_matrix(
        (np.ones(len(texts)), (product * shape[1] + week, np.arange(len(texts)))), (shape[0] * shape[1], len(texts))
    )
    svd = TruncatedSVD(32, random_state=0).fit(matrix[week < until])
    sums = (cells @ svd.transform(matrix)).reshape(*shape, -1)
    count = np.asarray(cells.sum(1)).reshape(shape)
    recent = np.stack([window(sums[..., topic], BASE) for topic in range(sums.shape[-1])], -1)
    return recent / np.maximum(window(count, BASE), 1)[..., None]


def features(
    reviews: pd.DataFrame, products: pd.DataFrame, until: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features (rows, F), series (rows, HISTORY, 3), targets and weeks of all rows whose horizon lies inside the data."""
    product, names = pd.factorize(reviews["parent_asin"], sort=True)
    first = reviews["week"].min()
    week = (reviews["week"] - first).to_numpy()
    shape = (len(names), week.max() + 1)

    def sums(values: np.ndarray) -> np.ndarray:
        dense = np.zeros(shape)
        np.add.at(dense, (product, week), values)
        return dense

    count, rating = sums(np.ones(len(week))), sums(reviews["rating"].to_numpy())
    verified, images = sums(reviews["verified_purchase"].to_numpy()), sums(reviews["images"].to_numpy())
    metadata = products.reindex(names)
    category = pd.factorize(metadata["main_category"])[0]
    of_category = np.stack([count[category == one].sum(0) for one in range(category.max() + 1)])[category]
    age = np.arange(shape[1]) - (count > 0).argmax(1)[:, None]
    columns = [
        age,
        np.broadcast_to(category[:, None], shape),
        np.broadcast_to(metadata["price"].to_numpy(float)[:, None], shape),
    ]
    for length in WINDOWS:
        recent, before, reviewed = window(count, length), window(count, length, length), np.maximum(window(count, length), 1)
        columns += [recent, recent / (before + 1), window(rating, length) / reviewed, window(verified, length) / reviewed]
        columns += [window(images, length) / reviewed, window(of_category, length)]
        columns += [window(of_category, length) / (window(of_category, length, length) + 1)]
    columns += [window(count, HORIZON, 52 - HORIZON), window(count, BASE, 52)]
    angle = 2 * np.pi * ((np.arange(shape[1]) + first) % 52.18) / 52.18
    columns += [np.broadcast_to(np.sin(angle), shape), np.broadcast_to(np.cos(angle), shape)]
    topics = text_topics(reviews, product, week, shape, until - first)

    base = window(count, BASE)
    ahead = np.pad(window(count, HORIZON), ((0, 0), (0, HORIZON)))[:, HORIZON:]
    growth = (ahead / (base + 1)).astype(np.float32)
    keep = (base > 0) & (np.arange(shape[1]) < shape[1] - HORIZON)
    hot = np.zeros(shape, bool)
    for t in range(shape[1] - HORIZON):
        values = growth[keep[:, t], t]
        if len(values):
            hot[:, t] = growth[:, t] > np.sort(values)[::-1][int(TOP * len(values) + 1e-9)]
    row, column = np.nonzero(keep)
    channels = np.pad(np.log1p(np.stack([count, verified, of_category], -1)), ((0, 0), (HISTORY - 1, 0), (0, 0)))
    series = np.stack([channels[row, column + k] for k in range(HISTORY)], 1).astype(np.float32)
    table = np.concatenate([np.stack([values[row, column] for values in columns], 1), topics[row, column]], 1).astype(
        np.float32
    )
    return table, series, hot[row, column].astype(int), column + first


def network(num_inputs: int) -> torch.nn.Sequential:
    relu, drop, linear = torch.nn.ReLU, torch.nn.Dropout, torch.nn.Linear
    return torch.nn.Sequential(
        linear(num_inputs, 128), relu(), drop(0.2), linear(128, 64), relu(), drop(0.2), linear(64, 1), torch.nn.Flatten(0)
    )


def network_scores(table: np.ndarray, series: np.ndarray, hot: np.ndarray, parts: dict[str, np.ndarray]) -> np.ndarray:
    """Logits of an MLP with the features and the series as inputs, after the epoch that is best on validation."""
    torch.manual_seed(0)
    train = parts["train"]
    table = np.sign(np.nan_to_num(table)) * np.log1p(abs(np.nan_to_num(table)))
    table = (table - table[train].mean(0)) / (table[train].std(0) + 1e-6)
    x = torch.from_numpy(np.concatenate([table, series.reshape(len(series), -1)], 1))
    y = torch.from_numpy(hot).float()
    model = network(x.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
    best, scores, patience = -1.0, np.zeros(len(hot)), 0
    while patience < 3:
        model.train()
        for rows in torch.from_numpy(np.random.permutation(train)).split(256):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model(x).numpy()
        score = average_precision_score(hot[parts["validation"]], logits[parts["validation"]])
        best, scores, patience = (score, logits, 0) if score > best else (best, scores, patience + 1)
    return scores


def main() -> None:
    reviews_file, products_file, out, *dates = sys.argv[1:]
    np.random.seed(0)
    cuts = [week_of(date) for date in dates]
    table, series, hot, week = features(*read(reviews_file, products_file), cuts[0] - HORIZON)
    begins, ends = [0, *cuts], [*(cut - HORIZON for cut in cuts), 10**6]  # no label looks into the next split
    parts = {
        name: np.flatnonzero((week >= begin) & (week < end))
        for name, begin, end in zip(("train", "validation", "blend", "test"), begins, ends, strict=True)
    }
    train, validation, blend, test = parts.values()
    sampled: dict[str, Any] = {"n_estimators": 2000, "learning_rate": 0.05, "subsample": 0.8, "colsample_bytree": 0.8}
    trees: dict[str, Any] = {
        "xgboost": xgboost.XGBClassifier(**sampled, max_depth=6, eval_metric="aucpr", early_stopping_rounds=50),
        "lightgbm": lightgbm.LGBMClassifier(**sampled, num_leaves=31, subsample_freq=1, verbose=-1),
    }
    trees["xgboost"].fit(table[train], hot[train], eval_set=[(table[validation], hot[validation])], verbose=False)
    stop = [lightgbm.early_stopping(50, verbose=False)]
    trees["lightgbm"].fit(
        table[train],
        hot[train],
        eval_X=table[validation],
        eval_y=hot[validation],
        eval_metric="average_precision",
        callbacks=stop,
    )
    logits = {
        name: np.log(p := np.clip(model.predict_proba(table)[:, 1], 1e-6, 1 - 1e-6)) - np.log1p(-p)
        for name, model in trees.items()
    }
    logits["network"] = network_scores(table, series, hot, parts)
    stacked = np.stack(list(logits.values()), 1)
    logits["ensemble"] = LogisticRegression().fit(stacked[blend], hot[blend]).decision_function(stacked)
    scores = {name: average_precision_score(hot[test], values[test]) for name, values in logits.items()}
    result = {"rows": len(test), "hot": int(hot[test].sum()), "average_precision": scores}
    Path(out).mkdir(parents=True, exist_ok=True)
    Path(out, "scores.json").write_text(json.dumps(result))
    print(result)


if __name__ == "__main__":
    main()
