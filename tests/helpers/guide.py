"""The worked example of the guide to recipes: its files, and its commands."""

import re
import textwrap
from pathlib import Path

from launcher import ROOT

GUIDE = ROOT / "ensemble/recipes/README.md"
NAME = "my_company.churn"


def blocks() -> tuple[dict[str, str], str]:
    """The guide's files by their path, and its commands."""
    text = GUIDE.read_text(encoding="utf-8")
    files = re.findall(r"^`(my_company/\S+\.py)`.*?```python\n(.*?)```", text, flags=re.DOTALL | re.MULTILINE)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return dict(files), commands


def write_files(folder: Path) -> None:
    """Write the example's package into a folder."""
    for path, source in blocks()[0].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source, encoding="utf-8")


def baseline() -> str:
    """The guide's baselines.py."""
    pattern = r"Save this as `baselines.py`:\n\n  ```python\n(.*?)  ```"
    (source,) = re.findall(pattern, GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return textwrap.dedent(source)
