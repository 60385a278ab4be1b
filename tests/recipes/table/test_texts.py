"""Columns of free text, and of many names."""

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_tables import prepare

from ensemble.recipes.table import columns, texts

WORDS = (["red apple pie", "green apple cake", "apple juice cold"], ["fast car race", "car engine loud", "race car track"])


def remarks(num_rows: int = 60) -> tuple[pl.Series, np.ndarray]:
    """Texts of two topics, all different, and which topic each has."""
    topic = np.arange(num_rows) % 2
    drawn = np.random.default_rng(0).integers(0, 3, num_rows)
    return pl.Series(
        [f"{WORDS[number][which]} no {row}" for row, (number, which) in enumerate(zip(topic, drawn, strict=True))]
    ), topic


def test_topics_differ_and_are_stored_as_json() -> None:
    """The features of a text would not depend on its topic, or could not be stored in a manifest."""
    values, topic = remarks()
    content = json.loads(json.dumps(texts.learn(values)))
    numbers = texts.encode(values, content)
    entries = texts.entries("remark", content)
    assert numbers.shape == (len(values), len(entries))
    assert [entry["text"] for entry in entries] == list(range(len(entries)))
    topics = numbers[:, 2 + len(texts.COUNTED) :]
    apart = [np.ptp([column[topic == number].mean() for number in (0, 1)]) / max(column.std(), 1e-6) for column in topics.T]
    assert max(apart) > 1.5
    assert any("apple" in entry["meaning"] or "car" in entry["meaning"] for entry in entries)


@pytest.mark.parametrize(("num_rows", "expected"), [(60, 8), (900, 9), (5000, 24)])
def test_few_texts_have_few_topics(num_rows: int, expected: int) -> None:
    """Two dozen topics of some hundred names would be noise beside the other columns."""
    drawn = np.random.default_rng(0).integers(0, 40, (num_rows, 4))
    values = pl.Series([" ".join(f"word{number}" for number in row) for row in drawn])
    assert texts.learn(values)["num_topics"] == expected


def test_words_are_learned_from_rows_of_both_kinds_where_they_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many rows for all of them, no answer would have a topic in a table where each follows its question."""
    monkeypatch.setattr(texts, "MAX_FITTED", 50)
    assert {"apple", "car"} <= set(texts.learn(remarks()[0])["terms"])


@pytest.mark.parametrize(
    ("topics", "shown"),
    [
        (("质量很好，物流也快，非常满意", "颜色不对，包装破损，要求退货"), "物 流"),
        (("とても丈夫で使いやすいです", "すぐに壊れたので返品しました"), "返 品"),
        (("สินค้าดีมากส่งเร็วประทับใจ", "ของเสียหายต้องการคืนเงิน"), "ค ื"),
    ],
)
def test_texts_without_blanks_between_words_have_topics(topics: tuple[str, str], shown: str) -> None:
    """A column of Chinese, Japanese or Thai reviews would be left out as an id, since each would be one word."""
    values = pl.Series([f"{topics[row % 2]}{row}" for row in range(60)])
    assert texts.is_prose(values)
    content = texts.learn(values)
    assert shown in content["terms"]
    columns_of_topics = texts.encode(values, content)[:, 2 + len(texts.COUNTED) :].T
    assert max(abs(column[::2].mean() - column[1::2].mean()) / max(column.std(), 1e-6) for column in columns_of_topics) > 1.5
    assert not texts.is_prose(pl.Series(["北京市", "大阪府", "ปทุมธานี"]))


def test_words_of_other_scripts_are_those_of_scikit_learn() -> None:
    """Tables in European languages would have other features."""
    from sklearn.feature_extraction.text import CountVectorizer

    text = "Don't panic: café №5 costs 3,50 €, naïve Straße x_y 'a' ab\nПривет κόσμε"
    assert re.findall(texts.TERM, text) == CountVectorizer(lowercase=False).build_analyzer()(text)
    assert pl.Series([text]).str.count_matches(texts.WORD).to_list() == [len(text.split())]


def test_each_text_has_its_own_numbers() -> None:
    """A row would be predicted otherwise in another file."""
    values, _ = remarks()
    content = texts.learn(values)
    together = texts.encode(values, content)
    for row in (0, 7, 59):
        assert texts.encode(values[row : row + 1], content).tobytes() == together[row : row + 1].tobytes()


@pytest.mark.parametrize("empty", [[], [None]])
def test_repeated_texts_have_the_numbers_of_each(empty: list[None]) -> None:
    """Texts that a file repeats would get the numbers of others, or two texts of a large table those of one."""
    values, _ = remarks()
    content = texts.learn(values)
    order = np.random.default_rng(1).integers(0, len(values) + len(empty), 300)
    repeated = pl.Series([[*values, *empty][number] for number in order], dtype=pl.String)
    each = np.stack([texts.encode(pl.Series([text], dtype=pl.String), content)[0] for text in repeated])
    np.testing.assert_array_equal(texts.encode(repeated, content), each)


def test_style_is_counted() -> None:
    """The counts would be of bytes, or a missing text an empty one."""
    content = texts.learn(pl.Series(["a b c", "d e f"]))
    assert content["num_topics"] == 0  # no word is in two of them
    numbers = texts.encode(pl.Series(["Ärger, 12", "", None]), content)
    assert numbers[0].tolist() == pytest.approx([9, 2, 1 / 9, 2 / 9, 1 / 9])
    assert numbers[1].tolist() == [0, 0, 0, 0, 0]
    assert np.isnan(numbers[2]).all()


def test_line_breaks_of_windows_are_those_of_other_systems() -> None:
    """The same text from another program would be a longer one, and get another prediction."""
    values, _ = remarks()
    content = texts.learn(values)
    broken = values + "\nsecond line"
    assert np.array_equal(texts.encode(broken.str.replace("\n", "\r\n"), content), texts.encode(broken, content))


def test_a_missing_text_is_missing_everywhere() -> None:
    """A missing text would have the features of a text without words."""
    values, _ = remarks()
    content = texts.learn(values)
    assert np.isnan(texts.encode(pl.Series([None, "apple car"]), content)).all(axis=1).tolist() == [True, False]


def learned(values: list[str | None], max_categories: int = 10_000) -> columns.Learned:
    return columns.learn("c", pl.Series(values), np.ones(len(values), bool), max_categories)


def test_what_becomes_of_texts() -> None:
    """Names would become features of free text, free text would become categories, or an id would become a feature."""
    assert [feature["unit"] for feature in learned(["a", "b", "c"] * 20).features] == ["category"]
    assert "taken for an id" in learned([f"row{number}" for number in range(60)]).left_out
    assert "taken for an id" in learned([f"First{number} Last{number}" for number in range(60)]).left_out
    assert learned(["comment", *[None] * 59]).left_out == "has only one filled cell in train"
    tickets = [*(f"t{number}" for number in range(50)), *["family", "twins"] * 3]
    assert "taken for an id" in learned(tickets).left_out
    assert [feature["values"] for feature in learned(tickets[30:]).features] == [["family", "twins"]]
    prose = learned(remarks()[0].to_list())
    assert prose.features[0]["meaning"] == "c: number of characters"
    assert prose.content is not None
    both = learned([f"chapter number {number % 300} of the book" for number in range(900)])
    assert [both.features[0]["unit"], both.features[1]["text"]] == ["category", 0]


def test_of_many_names_the_frequent_ones_are_kept() -> None:
    """A name of one row would be a category, or the number of categories would have no limit."""
    values = [f"n{number % 300:03}" for number in range(900)] + ["n007", "once"]
    feature = learned(values).features[0]
    assert feature["values"] == [f"n{number:03}" for number in range(300)]
    few = learned(values, max_categories=5).features[0]
    assert few["values"] == ["n000", "n001", "n002", "n003", "n007"]
    codes = columns.encode(pl.Series(["n007", "once", "never", None]), [{**few, "name": "c"}], {})["c"]
    assert codes[0] == 4
    assert np.isnan(codes[1:]).all()


def test_topics_are_those_of_train(tmp_path: Path) -> None:
    """The topics would depend on the texts of rows that are to be predicted."""
    values, topic = remarks(120)

    def content(*, changed: bool) -> dict[str, object]:
        is_new = pl.int_range(len(values)) >= 100
        remark = pl.when(is_new).then(pl.lit("other words here")).otherwise(values) if changed else values
        frame = pl.DataFrame({"remark": values, "y": topic}).with_columns(
            remark=remark, y=pl.when(~is_new).then(pl.Series(topic))
        )
        frame.write_csv(tmp_path / "table.csv")
        return prepare(tmp_path, tmp_path / "table.csv", overwrite=True)["texts"]

    assert content(changed=False) == content(changed=True)
