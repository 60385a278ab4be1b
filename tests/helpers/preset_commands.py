"""The commands that the comment at the beginning of a preset names."""

import re
import shlex
from pathlib import Path


def commands(preset: Path) -> dict[str, list[str]]:
    """By the name of each script, the words that follow it on its command line."""
    head = preset.read_text(encoding="utf-8").replace("\\\n#", "")
    lines = [shlex.split(command) for command in re.findall(r"^#   ((?:python|accelerate) .*)", head, re.MULTILINE)]
    return {word: words[words.index(word) + 1 :] for words in lines for word in words if word.endswith(".py")}
