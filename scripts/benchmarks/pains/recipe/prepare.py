"""Prepared data that are computed when they are read, so that a million batches need no space on disk."""

from typing import Any

from benchmarks.pains.recipe.settings import PrepareConfig
from ensemble import folders

NAME = "benchmarks.pains.recipe"


def prepare(config: PrepareConfig) -> dict[str, Any]:
    """Write the manifest; there are no other files."""
    with folders.new_folder(config.out, config.overwrite, "prepared data") as folder:
        return folders.write_manifest(
            folder,
            {
                "kind": "prepared data",
                "recipe": NAME,
                "config": {"num_rows": config.num_rows, "max_tokens": config.max_tokens},
                "splits": {"train": {"rows": config.num_rows}, "validation": {"rows": 8}},
                "alike": {},
            },
        )
