"""The baseline that every member must beat, and scores by category."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_market import config_for, product_metadata, steady_market, write_metadata

from ensemble import folders, predictions
from ensemble.arrow import open_table
from ensemble.recipes.hot_sellers import baselines, outputs, prepare


@pytest.mark.parametrize("split", ["blend", "test", "forecast"])
def test_the_score_is_momentum(prepared: Path, tmp_path: Path, split: str) -> None:
    """The score with which members are compared would be of other rows, or would not be the growth of the last weeks."""
    scores = baselines.predict(prepared, split)
    rows = open_table(prepared / "rows" / split)
    weeks = open_table(prepared / "weeks").to_pydict()
    for row, score in list(zip(rows.to_pylist(), scores["prediction"], strict=True))[::17]:
        reviews: Counter[int] = Counter()
        for at in range(row["weeks_begin"], row["weeks_end"]):
            reviews[row["week"] - weeks["week"][at]] += weeks["reviews"][at]
        last, before = (sum(reviews[ago] for ago in span) for span in (range(4), range(4, 8)))
        assert score == pytest.approx(last / (before + 1), rel=1e-6)
    np.testing.assert_array_equal(scores["row_id"], rows["row_id"].to_numpy())
    np.testing.assert_array_equal(scores["target"], rows["hot"].to_numpy())
    np.testing.assert_array_equal(scores["group"], rows["week"].to_numpy())
    np.testing.assert_array_equal(scores["cluster"], rows["product"].to_numpy())
    assert scores["fingerprint"] == folders.read_manifest(prepared)["fingerprint"]
    predictions.write(tmp_path / "x.parquet", predictions.Predictions(**scores, split=split, member=baselines.NAME))
    assert predictions.read(tmp_path / "x.parquet").output == "score"  # it is no probability, and may be more than 1


def test_a_category_named_unknown_has_its_own_scores(tmp_path: Path) -> None:
    """They would replace those of the products without a category."""
    metadata = (write_metadata(tmp_path / "raw", [product_metadata(one, "unknown") for one in "AB"]),)
    prepare.prepare(config_for(tmp_path, steady_market(), metadata=metadata, min_matched=0.4))
    scores = baselines.predict(tmp_path / "out", "test")
    test = predictions.Predictions(**scores, split="test", member=baselines.NAME)
    parts = outputs.scores_by_part("binary", test, {"half": np.full(len(test.target), 0.5)}, tmp_path / "out")
    rows = {name: part["rows"] for name, part in parts["by_category"].items()}
    assert rows == {"without category": 3 * len(parts["by_week"]), "unknown": 2 * len(parts["by_week"])}
