"""hot_sellers: which products will be among their week's top 5 % in review growth over the next 12 weeks."""

from ensemble.recipe import Words

WORDS = Words(
    unit="product",
    yes="hot",
    positives="hot sellers",
    became_yes="became hot",
    block="week",
    blocks="weeks",
    follow_time=True,
)
