"""emulator: small networks that replace part of a forecast model in data assimilation. Values and Jacobians are scored."""

from ensemble.recipe import Words

WORDS = Words(unit="cluster", block="group", blocks="rows")
