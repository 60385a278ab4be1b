"""candidates: a table of the items that next_item members rank highest, which trees and an ensemble rerank."""

from ensemble.recipe import Words

WORDS = Words(unit="user")
