"""next_item: which item a user takes next. SASRec and TiSASRec, each with plain residuals or with mHC."""

from ensemble.recipe import Words

WORDS = Words(unit="user")
