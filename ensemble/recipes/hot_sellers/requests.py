"""Requests to the service: rows of Amazon Reviews 2023, whose fields are checked, and which are converted to tables.

Further fields of a row are ignored, so that lines of the raw files can be sent unchanged. Rows are dicts (`TypedDict`),
since the validation of pydantic models takes twice the time.
"""

import json
import time
from itertools import accumulate
from typing import Annotated, Any, NotRequired

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from ensemble.data.reviews import HIGHEST_RATING, LOWEST_RATING, YEAR_1995_MS
from ensemble.recipes.hot_sellers import coverage
from ensemble.recipes.hot_sellers.weekly import DAY_MS

NOT_BLANK = r"\S"
REVIEW_TYPES = {
    "parent_asin": pa.string(),
    "user_id": pa.string(),
    "rating": pa.float64(),
    "timestamp": pa.int64(),
    "title": pa.string(),
    "text": pa.string(),
    "helpful_vote": pa.int64(),
    "verified_purchase": pa.bool_(),
}
PRODUCT_TYPES = {
    "parent_asin": pa.string(),
    "title": pa.string(),
    "main_category": pa.string(),
    "categories": pa.list_(pa.string()),
    "store": pa.string(),
}


class Review(TypedDict):
    """One review."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)  # type: ignore[misc]
    parent_asin: Annotated[str, Field(min_length=1, pattern=NOT_BLANK, description="id of the product")]
    asin: NotRequired[
        Annotated[str | None, Field(description="id of the variant, used if the fit's setting `columns` names asin")]
    ]
    user_id: Annotated[str, Field(min_length=1, pattern=NOT_BLANK, description="id of the reviewer")]
    rating: Annotated[float, Field(ge=LOWEST_RATING, le=HIGHEST_RATING, description="stars")]
    timestamp: Annotated[int, Field(ge=YEAR_1995_MS, lt=1 << 62, description="milliseconds since 1970, UTC")]
    title: NotRequired[Annotated[str | None, Field(description="headline")]]
    text: NotRequired[Annotated[str | None, Field(description="text of the review")]]
    helpful_vote: NotRequired[Annotated[int, Field(ge=0, lt=1 << 31, description="number of helpful votes")]]
    verified_purchase: NotRequired[Annotated[bool, Field(description="whether the purchase is verified")]]
    images: NotRequired[Annotated[list[Any], Field(description="images; only their number is used")]]


class Product(TypedDict):
    """The metadata of one product."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)  # type: ignore[misc]
    parent_asin: Annotated[str, Field(min_length=1, pattern=NOT_BLANK, description="id of the product")]
    title: NotRequired[Annotated[str | None, Field(description="name of the product")]]
    main_category: NotRequired[Annotated[str | None, Field(description="unknown if it is not in the training data")]]
    categories: NotRequired[Annotated[list[str], Field(description="category path, used if there is no main category")]]
    store: NotRequired[Annotated[str | None, Field(description="name of the seller")]]
    price: NotRequired[Annotated[float | str | None, Field(description="dollars")]]


class Request(BaseModel):
    """All reviews of all products of the categories, old and new, and the products' metadata."""

    # Only keys are cached, since ids and texts, which the default caches too, seldom repeat
    model_config = ConfigDict(extra="forbid", cache_strings="keys")
    reviews: Annotated[list[Review], Field(min_length=1)]
    products: Annotated[list[Product], Field(min_length=1)] | None = None


def counts(request: Request) -> dict[str, int]:
    """The number of rows of each table in a request. The first table is required for a forecast."""
    return {"reviews": len(request.reviews), "products": len(request.products or [])}


def problem(request: Request, training: dict[str, Any]) -> tuple[list[str | int], str] | None:
    """Location and error message of the first review dated more than a day in the future, or None. training : not used."""
    latest_ms = time.time() * 1000 + DAY_MS
    for number, review in enumerate(request.reviews):
        if review["timestamp"] > latest_ms:
            return ["reviews", number, "timestamp"], "a review is dated in the future: give milliseconds since 1970, UTC"
    return None


def tables(request: Request) -> tuple[pa.Table, pa.Table | None]:
    """The tables of reviews and of products of a request, as arguments of `Predictor.predict`."""
    return review_table(request.reviews), None if request.products is None else product_table(request.products)


def facts(training: dict[str, Any]) -> dict[str, Any]:
    """Entries of the response of /schema, for an ensemble fitted on data with the manifest `training`."""
    categories, horizon_weeks = training["categories"], training["config"]["horizon_weeks"]
    return {"horizon_weeks": horizon_weeks, "categories": categories, "products_needed": coverage.needs_metadata(training)}


def answer(metadata: dict[str, str]) -> dict[str, Any]:
    """Further entries of a response, beside the forecast, from the metadata of the forecast table.

    `lacking` has the shares of products without metadata and of reviews without text, if at least `coverage.NOTABLE`; and
    1 − the ratio of the number of products, or of weekly reviews, to that of the training data, if the ratio is less than
    `coverage.LEAST_OF_MARKET`.
    """
    lacking = json.loads(metadata["lacking"])
    return {"week": metadata["week"], "horizon_weeks": int(metadata["horizon_weeks"]), "lacking": lacking}


def review_table(reviews: list[Review]) -> pa.Table:
    """The table of reviews. The columns `asin` and `images` are left out if no review has them.

    Without `images`, the number of images of each review is unknown, not 0; `coverage.notes` warns of this unless nearly all
    training reviews lacked it too.
    """
    asin = {"asin": pa.string()} if any("asin" in review for review in reviews) else {}
    table = pa.Table.from_pylist(reviews, pa.schema(REVIEW_TYPES | asin))
    if any("images" in review for review in reviews):
        # Only the number of images is used, so each image is an empty string
        offsets = list(accumulate((len(review.get("images", ())) for review in reviews), initial=0))
        images = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array([""] * offsets[-1], pa.string()))
        table = table.append_column("images", images)
    return table


def product_table(products: list[Product]) -> pa.Table:
    """The table of products."""
    prices = [product.get("price") for product in products]
    price = pa.array([None if value is None else str(value) for value in prices], pa.string())
    return pa.Table.from_pylist(products, pa.schema(PRODUCT_TYPES)).append_column("price", price)
