"""candidates: the items that next_item members rank highest, as a table for trees and an ensemble to rank again."""

from ensemble.recipe import Words

WORDS = Words(unit="user")
