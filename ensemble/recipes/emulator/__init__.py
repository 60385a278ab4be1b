"""emulator: small networks that replace part of a forecast model in data assimilation, judged by values and Jacobians."""

from ensemble.recipe import Words

WORDS = Words(unit="cluster", block="group", blocks="rows")
