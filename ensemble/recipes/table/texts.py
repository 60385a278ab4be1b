"""Numerical features of columns of free text: length, style, and topics.

Topics are computed by latent semantic analysis (Deerwester et al. 1990): words with the weights (1 + ln count) × idf are
scaled to a norm of 1 in each text, and projected on the leading singular vectors of the train texts. The target is not
used, so it cannot leak between folds.

    content = learn(texts)                        # words and topics of the train rows, stored in the manifest
    entries(column, content)                      # the features of the column
    encode(texts, content)                        # (num_rows, number of entries) float32, NaN for missing texts
"""

import base64
from typing import Any

import numpy as np
import polars as pl

MAX_TERMS = 3000
"""Largest number of words and pairs of words that are used, the most frequent ones."""
WORDS_OF_A_TERM = (1, 2)
MIN_TOPICS, MAX_TOPICS, TEXTS_PER_TOPIC = 8, 24, 100
"""The number of singular vectors is that of texts divided by `TEXTS_PER_TOPIC`, within the first two numbers. On reviews of
products 16, 24 and 32 were equally good; on the names of 668 passengers 24 were worse than 8."""
MAX_FITTED = 20_000
"""Largest number of rows, a random sample, from which words and topics are learned."""
MOST_ROWS_OF_A_WORD = 0.9
"""Words in a larger fraction of the texts are left out."""
WORDS_SHOWN = 3
PROSE_WORDS = 2.0
"""Texts with more words than this on average are free text."""
_PAIRS, _FIVES = r"\p{Han}\p{Hiragana}\p{Katakana}", r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
WORD = rf"[{_PAIRS}]{{1,2}}|[{_FIVES}]{{1,5}}|[^\s{_PAIRS}{_FIVES}]+"
"""A word, for polars. In scripts without blanks between words, two or five characters count as one."""
_NO_BLANKS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
TERM = rf"[{_NO_BLANKS}]|[^\W{_NO_BLANKS}]{{2,}}"
"""A word of two or more letters or digits, or a character of these scripts, for Python. Pairs of both are used too."""
COUNTED: dict[str, str] = {"capitals": r"\p{Lu}", "digits": r"\d", "punctuation marks": r"\p{P}"}
"""Regular expressions of characters whose share in each text is a feature."""


def is_prose(texts: pl.Series) -> bool:
    """Whether the texts, none of them null, have more than `PROSE_WORDS` words on average."""
    return float(texts.str.count_matches(WORD).mean() or 0) > PROSE_WORDS  # type: ignore[arg-type]


def learn(texts: pl.Series) -> dict[str, Any]:
    """Words, their idf and singular vectors, for JSON; no words if none is in enough texts. texts : without nulls."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

    if len(texts) > MAX_FITTED:  # every k-th row would be of one kind where rows alternate, such as question and answer
        texts = texts.gather(np.random.default_rng(0).choice(len(texts), MAX_FITTED, replace=False, shuffle=False))
    least = max(2, len(texts) // 1000)
    counter = CountVectorizer(
        token_pattern=TERM, ngram_range=WORDS_OF_A_TERM, max_features=MAX_TERMS, min_df=least, max_df=MOST_ROWS_OF_A_WORD
    )
    try:
        counts = counter.fit_transform(texts.to_list())
    except ValueError:  # no word is left
        return {"terms": [], "idf": [], "topics": "", "num_topics": 0}
    weights = TfidfTransformer(sublinear_tf=True).fit(counts)
    most = max(MIN_TOPICS, min(MAX_TOPICS, len(texts) // TEXTS_PER_TOPIC))
    num_topics = min(most, *(size - 1 for size in counts.shape))
    topics = np.zeros((0, counts.shape[1]), np.float32)
    if num_topics > 0:
        decomposition = TruncatedSVD(num_topics, algorithm="randomized", random_state=0)
        topics = decomposition.fit(weights.transform(counts)).components_
    return {
        "terms": counter.get_feature_names_out().tolist(),
        "idf": [round(float(value), 6) for value in weights.idf_],
        "topics": base64.b64encode(topics.astype("<f2").tobytes()).decode(),
        "num_topics": len(topics),
    }


def entries(column: str, content: dict[str, Any]) -> list[dict[str, Any]]:
    """Entries of the manifest, without `name`, for the columns of `encode`."""
    meanings = [
        "number of characters",
        "number of words",
        *(f"share of {name}" for name in COUNTED),
        *(
            f"topic {number} ({', '.join(content['terms'][term] for term in np.argsort(-np.abs(topic))[:WORDS_SHOWN])})"
            for number, topic in enumerate(_topics(content), start=1)
        ),
    ]
    return [
        {"column": column, "meaning": f"{column}: {meaning}", "source": "table", "unit": "", "text": position}
        for position, meaning in enumerate(meanings)
    ]


def encode(texts: pl.Series, content: dict[str, Any]) -> np.ndarray:
    """The features of each text, (num_rows, number of entries) float32; NaN for null."""
    if texts.n_unique() < len(texts) // 2:  # each distinct text once
        has_null = texts.null_count() > 0
        rank = texts.rank("dense").fill_null(0).to_numpy()  # from 1 on in sorted order, where null is first
        return encode(texts.unique().sort(), content)[rank if has_null else rank - 1]
    texts = texts.str.replace_all("\r\n", "\n", literal=True)  # the same text, as Windows writes it
    lengths = texts.str.len_chars().cast(pl.Float64).to_numpy()
    num_words, *counts = (
        texts.str.count_matches(pattern).cast(pl.Float64).to_numpy() for pattern in (WORD, *COUNTED.values())
    )
    style = [lengths, num_words, *(count / np.maximum(lengths, 1) for count in counts)]
    features = np.empty((len(texts), len(style) + content["num_topics"]), np.float32)
    features[:, : len(style)] = np.stack(style, axis=1)
    if content["num_topics"]:
        from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

        counter = CountVectorizer(vocabulary=content["terms"], token_pattern=TERM, ngram_range=WORDS_OF_A_TERM)
        weights = TfidfTransformer(sublinear_tf=True)
        weights.idf_ = np.array(content["idf"])
        weighted = weights.transform(counter.transform(texts.fill_null("").to_list()))
        features[:, len(style) :] = weighted @ _topics(content).T.astype(np.float64)
        features[texts.is_null().to_numpy()] = np.nan
    return features


def _topics(content: dict[str, Any]) -> np.ndarray:
    """(num_topics, number of terms)."""
    topics = np.frombuffer(base64.b64decode(content["topics"]), "<f2").astype(np.float32)
    return topics.reshape(content["num_topics"], len(content["terms"]))
