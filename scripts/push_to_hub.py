"""Upload a fitted ensemble to the Hugging Face Hub. With HF_HUB_OFFLINE=1, only print what would be uploaded.

HF_TOKEN=… python scripts/push_to_hub.py ensemble=runs/demo/ensemble repository=me/hot-sellers
"""

import dataclasses

from ensemble import configuration, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushConfig:
    """The ensemble to upload, and the repository that receives it."""

    ensemble: str = "???"
    """The folder of a fitted ensemble."""
    repository: str = "???"
    """OWNER/NAME on the Hub; it is created if it does not exist."""
    private: bool = True
    """Whether a new repository is private. If true, an existing public repository is refused."""


def main() -> None:
    settings = configuration.from_command_line(PushConfig, __doc__)

    from ensemble.predictor import hub

    address = hub.push(settings.ensemble, settings.repository, settings.private)
    if address:
        print(f"uploaded: {address}")


if __name__ == "__main__":
    errors.run(main)
