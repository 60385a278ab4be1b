"""Tokenization of review text: hashed token ids, the number of words, and a sentiment score.

A word's id is computed from its CRC-32 and the vocabulary size. It is the same on every machine, so a model needs no
vocabulary file. Each distinct word of the given texts is hashed once, and looked up in `POSITIVE` and `NEGATIVE` once.
"""

import zlib
from typing import Any

import numpy as np
import polars as pl
import pyarrow.compute as pc

from ensemble.arrow import ranges

PADDING = 0
"""The token id of positions after the end of a text."""
WORD = r"[\p{L}\p{M}\p{N}']+"
"""Letters with their combining marks, digits and apostrophes."""
POSITIVE = frozenset(
    "amazing awesome beautiful best better comfortable durable easy enjoy enjoyed excellent fantastic favorite fine fun "
    "good gorgeous great happy helpful highly impressed incredible like liked love loved lovely nice perfect perfectly "
    "pleased pretty quality quick recommend recommended reliable satisfied smooth soft solid sturdy superb super thanks "
    "thrilled useful wonderful works worth wow".split()
)
NEGATIVE = frozenset(
    "annoying awful bad broke broken cheap complaint crap damaged dead defective difficult disappointed disappointing "
    "disappointment dirty doesn't failed fails fake faulty flimsy garbage hate hated horrible junk leak leaked leaks loose "
    "mediocre missing never noisy poor poorly problem problems refund return returned returning ripped rough sad scam slow "
    "stopped terrible thin ugly unhappy unusable useless waste weak worse worst wrong".split()
)


def tokenize(text: pl.Series, num_tokens: int, vocabulary_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The token ids of the first words of each text, its number of words, and its sentiment.

    Returns arrays of shape (num_texts, num_tokens), uint16, with `PADDING` where a text is shorter; (num_texts,), int32; and
    (num_texts,), int32, the number of positive words minus that of negative words. A null text has no words.
    """
    plain = text.str.to_lowercase().str.replace_all("’", "'", literal=True).str.replace_all(r"<br ?/?>", " ")
    words = plain.str.extract_all(WORD)
    num_words = words.list.len().fill_null(0).to_numpy().astype(np.int32)
    position, row = ranges(np.zeros(len(text), np.int64), num_words)

    flat = pc.dictionary_encode(words.filter(num_words > 0).explode().to_arrow())
    distinct, code = flat.dictionary.to_pylist(), flat.indices.to_numpy()
    word_id = np.array([1 + zlib.crc32(word.encode()) % (vocabulary_size - 1) for word in distinct], np.uint16)
    word_score = np.array([(word in POSITIVE) - (word in NEGATIVE) for word in distinct], np.int32)

    tokens = np.full((len(text), num_tokens), PADDING, np.uint16)
    kept = position < num_tokens
    tokens[row[kept], position[kept]] = word_id[code[kept]]
    sentiment = np.bincount(row, word_score[code], minlength=len(text)).astype(np.int32)
    return tokens, num_words, sentiment


def tokenize_pretrained(text: pl.Series, num_tokens: int, tokenizer: Any) -> np.ndarray:
    """Token ids of a transformers tokenizer, shape (num_texts, num_tokens), int32, padded with its padding id."""
    texts = text.fill_null("").to_list()
    encoded = tokenizer(texts, padding="max_length", truncation=True, max_length=num_tokens)
    return np.asarray(encoded["input_ids"], np.int32).reshape(len(text), num_tokens)
