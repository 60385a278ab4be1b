"""candidates: trees and an ensemble rerank the items that members of next_item rank highest, as the rows of a table."""

from ensemble.recipe import Words

WORDS = Words(unit="user")
