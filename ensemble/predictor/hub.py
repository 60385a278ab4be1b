"""Upload of a fitted ensemble to the Hugging Face Hub."""

import sys
from pathlib import Path

from ensemble import folders
from ensemble.errors import Failure, UserError


def push(folder: str | Path, repository: str, private: bool = True) -> str:
    """Upload a folder with a model card as one commit, and return the address of the commit; '' if offline.

    The files are printed first. With HF_HUB_OFFLINE=1 they are not sent. The token is taken from HF_TOKEN or from `hf auth
    login`. Raises `UserError` for a folder that is damaged or has no model card, for an invalid name, without a token, for a
    repository that is public although `private`, and for a request that the Hub refuses; `Failure` if the Hub does not
    answer.
    """
    import httpx2
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.utils import validate_repo_id

    folder = Path(folder)
    manifest = folders.verify(folder)
    if "README.md" not in manifest["files"]:
        raise UserError(
            f"{folder} has no model card README.md (its kind is '{manifest.get('kind')}'): give the folder of an ensemble"
        )
    try:
        validate_repo_id(repository)
        is_valid = "/" in repository
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise UserError("repository must be OWNER/NAME on the Hub, of letters, digits, '-', '_' and '.': correct it")
    files = {name: entry["bytes"] for name, entry in manifest["files"].items()}
    files[folders.NAME] = (folder / folders.NAME).stat().st_size
    for name, num_bytes in sorted(files.items()):
        print(f"{num_bytes:>12,}  {name}")
    total = f"{len(files)} files, {sum(files.values()):,} bytes"
    destination = f"the {'private' if private else 'public'} repository {repository}"
    if constants.HF_HUB_OFFLINE:
        print(f"offline: nothing was sent; {total} would go to {destination}")
        return ""
    if not get_token():
        raise UserError("there is no token for the Hub: set HF_TOKEN, or log in with `hf auth login`")
    print(f"{total} go to {destination}", file=sys.stderr)
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
            commit_message=f"{manifest['kind']} {manifest['fingerprint']}",
        )
    except HfHubHTTPError as error:
        raise UserError(
            f"the Hub refused {repository} ({' '.join(str(error).split())}): check the token and the name"
        ) from None
    except (httpx2.HTTPError, OSError) as error:
        raise Failure(f"the Hub at {constants.ENDPOINT} does not answer ({error}); nothing is lost, try again") from None
    return str(commit.commit_url)
