"""next_item: SASRec or TiSASRec, with residual or hyper-connections (mHC), predict the next item of a user."""

from ensemble.recipe import Words

WORDS = Words(unit="user")
