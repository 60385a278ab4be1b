"""next_item: SASRec or TiSASRec, with residual connections or hyper-connections (mHC), predicts a user's next item."""

from ensemble.recipe import Words

WORDS = Words(unit="user")
