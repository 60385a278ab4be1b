"""Text to token ids, the same on every machine, cut and padded; the number of words, and the sentiment."""

import unicodedata
import zlib

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ensemble.recipes.hot_sellers import text


def tokenize(texts: list[str | None], num_tokens: int, vocabulary_size: int = 8192) -> tuple[np.ndarray, ...]:
    return text.tokenize(pl.Series("text", texts, pl.String), num_tokens, vocabulary_size)


def test_ids_are_what_they_always_were() -> None:
    """A model that was trained earlier or on another machine would get other token ids for the same words."""
    tokens, num_words, sentiment = tokenize(["Great, GREAT product:\nit's café 日本!"], 8)
    assert tokens.tolist() == [[7960, 7960, 7986, 4318, 2118, 3005, 0, 0]]
    assert tokens.dtype == np.uint16
    assert num_words.tolist() == [6]
    assert sentiment.tolist() == [2]
    assert tokenize(["great product"], 2, vocabulary_size=100)[0].tolist() == [[47, 37]]
    assert tokenize(["great product"], 2, vocabulary_size=65536)[0].tolist() == [[7157, 55288]]
    assert tokenize(["great product"], 2, vocabulary_size=2)[0].tolist() == [[1, 1]]


def test_apostrophes_tags_and_combining_marks() -> None:
    """The apostrophe of phones, a tag of a web page, or an accent that is a separate character would divide words."""
    plain = tokenize(["it doesn't work fine"], 8)
    for other in ("it doesn’t work fine", "It doesn't<br />work<br>fine"):
        assert all((one == two).all() for one, two in zip(tokenize([other], 8), plain, strict=True))
    decomposed = unicodedata.normalize("NFD", "schönes größeres Gerät")
    assert tokenize([decomposed, "नमस्ते बहुत अच्छा उत्पाद"], 8)[1].tolist() == [3, 4]


def test_empty_and_null_texts() -> None:
    """A review without words would shift the words of the next one, or stop the run."""
    tokens, num_words, sentiment = tokenize([None, "", " ... !", "good", None, "bad bad"], 2)
    assert (tokens > 0).tolist() == [[False] * 2] * 3 + [[True, False], [False] * 2, [True, True]]
    assert num_words.tolist() == [0, 0, 0, 1, 0, 2]
    assert sentiment.tolist() == [0, 0, 0, 1, 0, -2]
    for nothing in ([], [None], ["", None]):
        tokens, num_words, sentiment = tokenize(nothing, 3)
        assert tokens.shape == (len(nothing), 3)
        assert not tokens.any()
        assert num_words.tolist() == sentiment.tolist() == [0] * len(nothing)


def test_a_long_text_is_cut_but_counted_whole() -> None:
    """The count of words and the sentiment would depend on how many tokens the neural member reads."""
    tokens, num_words, sentiment = tokenize(["fine " * 3 + "blue " * 5 + "awful broken"], 4)
    assert (tokens[0, :3] == tokens[0, 0]).all()
    assert tokens[0, 3] not in (tokens[0, 0], text.PADDING)
    assert num_words.tolist() == [10]
    assert sentiment.tolist() == [1]


def test_positive_and_negative_words_are_disjoint() -> None:
    """A word would count as positive and negative, or be written so that no word of a text can match it."""
    assert not text.POSITIVE & text.NEGATIVE
    for word in text.POSITIVE | text.NEGATIVE:
        assert tokenize([word.title()], 1)[1:] == (1, 1 if word in text.POSITIVE else -1), word


LETTERS = "aZéßñ-'9٣, .\n\tдЖ日語_$☃"


@given(texts=st.lists(st.none() | st.text(LETTERS, max_size=30), max_size=8), num_tokens=st.integers(1, 6))
def test_tokens_against_one_word_at_a_time(texts: list[str | None], num_tokens: int) -> None:
    """A word would land in another text, at another place, or under another id."""
    tokens, num_words, _ = tokenize(texts, num_tokens, 1000)
    for row, content in enumerate(texts):
        kept = (c if c == "'" or unicodedata.category(c)[0] in "LN" else " " for c in (content or "").lower())
        words = "".join(kept).split()
        assert num_words[row] == len(words)
        ids = [1 + zlib.crc32(word.encode()) % 999 for word in words][:num_tokens]
        assert tokens[row].tolist() == ids + [text.PADDING] * (num_tokens - len(ids))


def test_pretrained_tokens(tmp_path) -> None:
    """The ids of a pretrained encoder would be cut or padded in the wrong way, or null would not be an empty text."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `text`: pip install '.[text]'")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "soap"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    texts = pl.Series("text", ["good soap", None, "bad bad bad bad", "x"])
    tokens = text.tokenize_pretrained(texts, 4, tokenizer)
    assert tokens.tolist() == [[2, 4, 6, 3], [2, 3, 0, 0], [2, 5, 5, 3], [2, 1, 3, 0]]
    assert tokens.dtype == np.int32
