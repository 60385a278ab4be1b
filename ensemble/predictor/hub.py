"""A fitted ensemble to the Hugging Face Hub, or what would be sent there."""

import sys
from pathlib import Path

from ensemble import folders
from ensemble.errors import Failure, UserError


def push(folder: str | Path, repository: str, private: bool = True) -> str:
    """Upload a folder with a card as one commit, and return its address; '' if offline.

    With HF_HUB_OFFLINE=1 nothing is sent. What is, or would be, is printed first. The token is that of HF_TOKEN, or of
    `hf auth login`. Raises `UserError` for a folder that is not sound and for a refusal that the user can mend, `Failure`
    for a Hub that does not answer.
    """
    import httpx2
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    folder = Path(folder)
    about = folders.verify(folder)
    if "README.md" not in about["files"]:
        raise UserError(f"{folder} has no model card README.md: fit the ensemble again with this version")
    files = {name: entry["bytes"] for name, entry in about["files"].items()}
    files[folders.NAME] = (folder / folders.NAME).stat().st_size
    for name, num_bytes in sorted(files.items()):
        print(f"{num_bytes:>12,}  {name}")
    whole = f"{len(files)} files, {sum(files.values()):,} bytes"
    where = f"the {'private' if private else 'public'} repository {repository}"
    if constants.HF_HUB_OFFLINE:
        print(f"offline: nothing was sent; {whole} would go to {where}")
        return ""
    if not get_token():
        raise UserError("there is no token for the Hub: set HF_TOKEN, or log in with `hf auth login`")
    print(f"{whole} go to {where}", file=sys.stderr)
    hub = HfApi()
    try:
        hub.create_repo(repository, private=private, exist_ok=True)
        if private and not hub.model_info(repository).private:
            raise UserError(
                f"{repository} exists and is public: name another, or add private=false to upload for all to see"
            )
        commit = hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=sorted(files),
            commit_message=f"{about['kind']} {about['fingerprint']}",
        )
    except HFValidationError as error:
        raise UserError(f"repository={repository} is no name on the Hub ({error}): write OWNER/NAME") from None
    except HfHubHTTPError as error:
        raise UserError(
            f"the Hub refused {repository} ({' '.join(str(error).split())}): check the token and the name"
        ) from None
    except (httpx2.HTTPError, OSError) as error:
        raise Failure(f"the Hub at {constants.ENDPOINT} does not answer ({error}); nothing is lost, try again") from None
    return str(commit.commit_url)
