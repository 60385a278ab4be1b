"""next_item: the next item of a user, predicted by SASRec or TiSASRec with residual or hyper-connections (mHC)."""

from ensemble.recipe import Words

WORDS = Words(unit="user")
