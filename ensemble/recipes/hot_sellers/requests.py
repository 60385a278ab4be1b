"""A request to the service, and how it becomes tables: the raw rows of Amazon Reviews 2023, checked by field.

What a row has besides these fields is passed over, so that lines of the raw files can be sent as they are. Rows are plain
dicts: models would take twice the time.
"""

import json
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, NotRequired

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from ensemble.data.reviews import HIGHEST_RATING, LOWEST_RATING, YEAR_1995_MS

DAY_MS = 86_400_000
NOT_BLANK = r"\S"
REVIEW_KINDS = {
    "parent_asin": pa.string(),
    "user_id": pa.string(),
    "rating": pa.float64(),
    "timestamp": pa.int64(),
    "title": pa.string(),
    "text": pa.string(),
    "helpful_vote": pa.int64(),
    "verified_purchase": pa.bool_(),
}
PRODUCT_KINDS = {
    "parent_asin": pa.string(),
    "title": pa.string(),
    "main_category": pa.string(),
    "categories": pa.list_(pa.string()),
    "store": pa.string(),
}


class Review(TypedDict):
    """One review."""

    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    parent_asin: Annotated[str, Field(min_length=1, pattern=NOT_BLANK, description="the product")]
    user_id: Annotated[str, Field(min_length=1, pattern=NOT_BLANK, description="who wrote it")]
    rating: Annotated[float, Field(ge=LOWEST_RATING, le=HIGHEST_RATING, description="stars")]
    timestamp: Annotated[int, Field(ge=YEAR_1995_MS, lt=1 << 62, description="milliseconds since 1970, UTC")]
    title: NotRequired[Annotated[str | None, Field(description="headline")]]
    text: NotRequired[Annotated[str | None, Field(description="the review itself")]]
    helpful_vote: NotRequired[Annotated[int, Field(ge=0, lt=1 << 31, description="people who found it helpful")]]
    verified_purchase: NotRequired[Annotated[bool, Field(description="whether the product was bought there")]]
    images: NotRequired[Annotated[list[Any], Field(description="pictures; only their number counts")]]


class Product(TypedDict):
    """What the catalogue says of one product."""

    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    parent_asin: Annotated[str, Field(min_length=1, pattern=NOT_BLANK, description="the product")]
    title: NotRequired[Annotated[str | None, Field(description="its name")]]
    main_category: NotRequired[Annotated[str | None, Field(description="one that the members never saw counts as unknown")]]
    categories: NotRequired[Annotated[list[str], Field(description="its path, read where there is no main category")]]
    store: NotRequired[Annotated[str | None, Field(description="who sells it")]]
    price: NotRequired[Annotated[float | str | None, Field(description="dollars")]]


class Request(BaseModel):
    """All reviews of all products of the categories, old and new, and the products' metadata."""

    model_config = ConfigDict(cache_strings="keys")  # texts differ: to remember them takes a fifth of the time
    reviews: Annotated[list[Review], Field(min_length=1)]
    products: Annotated[list[Product], Field(min_length=1)] | None = None


def counts(request: Request) -> dict[str, int]:
    """How many rows a request has of each kind; the first kind is what is forecast from."""
    return {"reviews": len(request.reviews), "products": len(request.products or [])}


def problem(request: Request, like: dict[str, Any]) -> tuple[list[str | int], str] | None:
    """The first review that is dated in the future, by more than a day: its place and a sentence; None if there is none."""
    end = time.time() * 1000 + DAY_MS
    ahead = next((number for number, review in enumerate(request.reviews) if review["timestamp"] > end), None)
    if ahead is None:
        return None
    return ["reviews", ahead, "timestamp"], "a review cannot be of the future: give milliseconds since 1970, UTC"


def tables(request: Request) -> tuple[pa.Table, pa.Table | None]:
    """The request's reviews and products as `Predictor.predict` takes them."""
    return review_table(request.reviews), None if request.products is None else product_table(request.products)


def facts(like: dict[str, Any]) -> dict[str, Any]:
    """What /schema says of an ensemble that was fitted on data with the manifest `like`."""
    categories = like["categories"]
    horizon = {"horizon_weeks": like["config"]["horizon_weeks"]}
    return {**horizon, "categories": categories, "products_needed": len(categories) > 1}


def answer(metadata: dict[str, str]) -> dict[str, Any]:
    """What stands in an answer beside the forecast, from the metadata of its table."""
    # The part of the products without metadata, of the reviews without text, and of training's products and weekly reviews
    lacking = json.loads(metadata["lacking"])
    return {"week": metadata["week"], "horizon_weeks": int(metadata["horizon_weeks"]), "lacking": lacking}


def review_table(reviews: list[Review]) -> pa.Table:
    """The reviews as `Predictor.predict` takes them."""
    end = list(accumulate((len(review.get("images", ())) for review in reviews), initial=0))
    images = pa.ListArray.from_arrays(pa.array(end, pa.int32()), pa.array([""] * end[-1], pa.string()))
    return pa.table({**_columns(reviews, REVIEW_KINDS), "images": images})


def product_table(products: list[Product]) -> pa.Table:
    """The products as `Predictor.predict` takes them."""
    given = [product.get("price") for product in products]
    price = pa.array([None if one is None else str(one) for one in given], pa.string())
    return pa.table({**_columns(products, PRODUCT_KINDS), "price": price})


def _columns(rows: Sequence[Mapping[str, Any]], kinds: dict[str, pa.DataType]) -> dict[str, pa.Array]:
    return {name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()}
