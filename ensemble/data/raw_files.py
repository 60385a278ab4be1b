"""Find the raw files that paths, globs and `hub:CATEGORY` name; CATEGORY is one of the dataset Amazon Reviews 2023."""

import filecmp
import glob
import os
import shutil
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ensemble import folders
from ensemble.data import octets
from ensemble.errors import UserError, listed, refuse_unreadable

HUB_REPOSITORY = "McAuley-Lab/Amazon-Reviews-2023"
HUB_FILES = {"reviews": "raw/review_categories/{}.jsonl", "products": "raw/meta_categories/meta_{}.jsonl"}

Kind = Literal["reviews", "products"]


def expand_sources(
    sources: Sequence[str | Path], cache_dir: str | Path | None, kind: Kind = "reviews", with_copies: bool = False
) -> list[Path]:
    """The files that paths, globs and `hub:CATEGORY` name, in their order, each once.

    A category of `hub:` is downloaded into `cache_dir`: its reviews or its metadata, depending on `kind`. If a file is given
    twice, by the same path, by a link or, without `with_copies`, as a copy, the second one is left out with a warning. Empty
    files that a glob matches are left out with a warning too, unless all of them are empty. Raises `UserError` for no
    source, a path that is no regular file, a URL, a glob without matches, a download that fails, and `hub:` if `cache_dir`
    is None.
    """
    if not sources:
        raise UserError("source names no file: name at least one file, glob or hub:CATEGORY")
    if "" in sources:
        raise UserError("source has an empty name, as between two commas or of an unset variable: leave it out")
    files: list[Path] = []
    for source in map(str, sources):
        if source.startswith("hub:"):
            if cache_dir is None:
                raise UserError(f"{source} names reviews of products, which are not read here: name files")
            paths = [_download(source.removeprefix("hub:"), Path(cache_dir), kind)]
        elif "://" in source:
            raise UserError(f"{source} is a URL, and only local files are read: download it, and give the file")
        elif glob.has_magic(source) and not os.path.exists(source):
            matched = map(Path, sorted(glob.glob(source, recursive=True)))
            paths = [path for path in matched if path.is_file() or not path.exists()]  # a link may lead nowhere
            if not paths:
                refuse_unreadable(os.path.dirname(source))
                raise UserError(f"no file matches '{source}': check the pattern, and quote it against the shell")
        else:
            paths = [Path(source)]
        for path in paths:
            octets.require_file(path)
        files += _without_empty(source, paths)
    return _each_once(files, with_copies)


def _without_empty(source: str, paths: list[Path]) -> list[Path]:
    """The files of a source, without the empty ones, such as `_SUCCESS` of Spark; all of them if all are empty."""
    empty = {path for path in paths if _is_empty(path)} if len(paths) > 1 else set[Path]()
    if 0 < len(empty) < len(paths):
        names = listed([path.name for path in paths if path in empty], 3)
        print(f"warning: empty files that match '{source}' are left out: {names}", file=sys.stderr)
        return [path for path in paths if path not in empty]
    return paths


def _is_empty(path: Path) -> bool:
    """Whether a file has no bytes, or is Parquet without rows, as Spark writes its first part if this part has none."""
    import pyarrow.parquet as pq

    with suppress(OSError, ValueError, NotImplementedError), path.open("rb") as file:  # the reader reports the error
        return not file.peek(4) or (file.peek(4).startswith(b"PAR1") and not pq.read_metadata(file).num_rows)
    return False


def _each_once(files: list[Path], with_copies: bool) -> list[Path]:
    """The files, without those that are a link to an earlier file or, without `with_copies`, a copy of it. Each of these
    causes a warning. The keys of folders named `KEY=VALUE` are columns, so files with equal content in such folders are
    copies only if all keys and values are equal."""
    distinct: list[Path] = []
    alike: dict[tuple[int, int], list[Path]] = {}  # only these are compared, since there may be thousands of files
    for path in files:
        others = alike.setdefault(_sample(path), [])
        same = (
            other
            for other in others
            if other.samefile(path)
            or (not with_copies and _keys(other) == _keys(path) and filecmp.cmp(other, path, shallow=False))
        )
        if earlier := next(same, None):
            print(f"warning: {path} is given twice, also as {earlier}: it is read once", file=sys.stderr)
        else:
            distinct.append(path)
            others.append(path)
    return distinct


def _sample(path: Path) -> tuple[int, int]:
    """The size of a file, and a checksum of blocks that are evenly spaced in it. All files of a model on one grid have equal
    sizes, and begin with equal coordinates."""
    size, checksum = path.stat().st_size, 0
    with suppress(OSError), path.open("rb") as file:  # the reader reports the error
        for begin in range(0, size, size // 16 + 1):
            file.seek(begin)
            checksum = zlib.crc32(file.read(4096), checksum)
    return size, checksum


def _keys(path: Path) -> list[str]:
    """The folders on the path of a file that are named `KEY=VALUE`."""
    return [part for part in path.parent.parts if part.find("=") > 0]


def _download(category: str, cache_dir: Path, kind: Kind) -> Path:
    """One file of the dataset Amazon Reviews 2023, from the Hub or from `cache_dir`."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    name = HUB_FILES[kind].format(category)
    is_new = not cache_dir.exists()
    folders.refuse_inside(cache_dir / name)
    try:
        return Path(hf_hub_download(HUB_REPOSITORY, name, repo_type="dataset", cache_dir=cache_dir))
    except RemoteEntryNotFoundError:
        if is_new:  # huggingface_hub has made the folder, to record that the file does not exist
            shutil.rmtree(cache_dir, ignore_errors=True)
        raise UserError(
            f"there is no category '{category}' in {HUB_REPOSITORY}: write it as in that dataset, such as hub:All_Beauty"
        ) from None
    except Exception as error:  # also of the HTTP library, such as for a proxy that it does not support
        reason = " ".join(str(error).split())[:100]
        raise UserError(
            f"hub:{category} cannot be downloaded ({reason}…): download {name} of the dataset {HUB_REPOSITORY} by hand and "
            f"give its path instead of hub:{category}"
        ) from None
