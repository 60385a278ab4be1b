"""Files of reviews that are damaged or something else, and where the files come from: paths, patterns and the hub."""

import gzip
import os
import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest
from raw_reviews import json_lines, read, review, write

from ensemble.data.raw_files import expand_sources
from ensemble.data.reviews import Census, read_reviews
from ensemble.errors import UserError

# ------------------------------------------------------------------------------------------------------- bad files


def test_a_truncated_gzip_names_file_and_offset(tmp_path):
    """A half-downloaded file would pass as a short one, or raise a traceback."""
    noise = random.Random(0)
    rows = [review(user_id=f"{noise.random()}") for _ in range(20_000)]
    packed = gzip.compress(json_lines(*rows))
    file = write(tmp_path / "r.jsonl.gz", packed[: len(packed) // 2])
    frames = []
    with pytest.raises(
        UserError, match=rf"{file} ends early near byte {len(packed) // 2:,}, after ([\d,]+) decomp"
    ) as error:
        frames.extend(read_reviews([file], Census(), block_bytes=1_000_000))
    offset = int(str(error.value).split("after ")[1].split()[0].replace(",", ""))
    assert 0.9 < offset / (len(json_lines(*rows)) / 2) < 1.1
    assert len(frames) > 1  # what came before the damage was read


def test_a_damaged_gzip_names_file_and_offset(tmp_path):
    """A flipped byte would pass, or raise a traceback."""
    packed = bytearray(gzip.compress(json_lines(*[review(user_id=f"U{n}") for n in range(20_000)])))
    packed[-6] ^= 1  # the checksum
    with pytest.raises(UserError, match=r"is damaged \(CRC check failed.*near byte [\d,]+, after [\d,]+ decompressed"):
        read(write(tmp_path / "r.gz", bytes(packed)))
    packed[len(packed) // 2] ^= 255
    with pytest.raises(UserError, match=r"r\.gz is damaged \("):
        read(write(tmp_path / "r.gz", bytes(packed)))


def test_a_damaged_parquet_is_refused(tmp_path):
    """A Parquet file without its end, or with text that is no UTF-8, would raise a traceback."""
    pl.DataFrame([review(user_id="Gustav")] * 100).write_parquet(tmp_path / "r.parquet", compression="uncompressed")
    content = (tmp_path / "r.parquet").read_bytes()
    for damaged in (content[:-100], content.replace(b"Gustav", b"Gu\xfftav")):
        with pytest.raises(UserError, match=r"damaged\.parquet is not a valid Parquet file"):
            read(write(tmp_path / "damaged.parquet", damaged))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"UserId,ProductId,Rating,Timestamp,\n", "has no valid row"),
        (b"[{}]", "is one JSON list: write one object per line, as `jq -c '.\\[\\]'` does"),
        (b'[\n {"a": 1},\n {"a": 2}\n]\n', "is one JSON list"),
        (
            b'["a", "b"]\n\n{"a": 1, "b": 2}\n',
            r"the first line of .* is a JSON list, '\[\"a\", \"b\"\]', .* objects: remove it",
        ),
        (
            b"[1, 2]\n[3, 4]\n",
            r"each line of .* is a JSON list, such as '\[1, 2\]': .* `jq -c '\{id: \.\[0\], x: \.\[1\]\}'`",
        ),
        (b'[{"a": 1}, {"a": 2}]\n[{"a": 3}]\n', r"each line of .* as `jq -c '\.\[\]'` does"),
        (
            b'{"a": {"0": 1, "1": 2}, "b": {"0": 3, "1": 4}}',
            r"is one JSON object of lists or objects: .*to_json\(path, orient=",
        ),
        (b"[1, 2]\nand so on\n", "is a JSON list, .* and the lines below it are not: write one JSON object per line"),
        (b"[who],[what]\n1,2\n", r"has no known format of reviews \(its columns are \[who\], \[what\]\)"),
        (b"{\n  'rating': 5\n}", r"begins with '\{\\n .*', which is not a JSON object"),
        (b"UserID::MovieID\n1::2\n", r"write a tab in place of each '::', as `sed 's/::/\\t/g' OLD > NEW` does"),
        (b"U7\t2009-05-04T23:08:57Z\tP\tSong\n", "if that line is a review, name the columns by their numbers"),
        (b"PK\x03\x04rest", r"is a zip archive, as Excel files \(.xlsx\) are too: unpack or convert"),
        (b"sep=;\r\nwho;what\r\n1;2\r\n", "the first line of .* is 'sep=;', which only Excel knows: delete the line"),
        (b"\xff\xfeU\x00", "is text in UTF-16"),
        ("\ufeffU".encode("utf-32-le"), "is text in UTF-32"),
        ("\ufeffU".encode("utf-32-be"), "is text in UTF-32"),
        (b"\x28\xb5\x2f\xfdrest", "is compressed with zstd"),
        (b"\x28\xb5\x2f\xfd\rrest", "is compressed with zstd"),
        (b"\n\x16\xcb", "is not UTF-8 text"),
        (b"who,what\n1,2\n", r"has no known format of reviews \(its columns are who, what\): name the columns of"),
        (json_lines({"a": 1, "b": 2}), r"has no known format of reviews \(its columns are a, b\)"),
        (
            b"A3,B1,5,1369699200\nA4,B1,3,1369699201\n",
            r"name the columns by their numbers, as in 'columns=\{user_id: 1, product_id: 2, rating: 3, time: 4\}';",
        ),
        (
            json_lines({"parent_asin": "P", "title": "T", "categories": []}),
            "contains product metadata, not reviews .*: take it out of source, and give it as metadata if the recipe reads",
        ),
        (json_lines(review(timestamp="soon")), r"no time in its column 'timestamp', as in 'soon'"),
        (json_lines(review(timestamp=None)), "no time in its column 'timestamp': it must"),
        (b"user_id,parent_asin,rating,rating,timestamp\na,b,1,2,1600000000\n", "two columns 'rating'"),
    ],
)
def test_files_that_are_something_else(tmp_path, content, message):
    """A file of another kind would be guessed at, or fail without saying what was seen."""
    with pytest.raises(UserError, match=message):
        read(write(tmp_path / "file", content))


def test_python_dicts_become_json_by_the_command_of_the_error(tmp_path):
    """The earliest releases, whose lines are Python dicts, would be refused without a way to read them."""
    lines = "".join(f"{review(text=text)}\n" for text in ("it's", 'a "b"', "é"))
    file = write(tmp_path / "old.json", lines)
    with pytest.raises(UserError, match=r"begins with '\{'rating'.*: if each line is a Python dict, .*`python -c") as error:
        read(file)
    command = str(error.value).split("`")[1].replace("python ", f"{sys.executable} ", 1)
    subprocess.run(command.replace("OLD", "old.json").replace("NEW", "new.json"), shell=True, check=True, cwd=tmp_path)
    assert read(tmp_path / "new.json")["text"].to_list() == ["Fine\nit's", 'Fine\na "b"', "Fine\né"]
    with pytest.raises(UserError, match=r"begins with '\{u'rating': 5\}', which .*: if each line is a Python dict"):
        read(write(tmp_path / "steam.json", "{u'rating': 5}\n"))


def test_columns_by_number_are_those_that_are_read(tmp_path):
    """The advice would name a column of ratings, which is not read, and more columns than the file has."""
    file = write(tmp_path / "a.csv", "A3,B1,2013-05-24\nA4,B1,2013-05-25\n")
    with pytest.raises(UserError, match=r"their numbers, as in 'columns=\{user_id: 1, product_id: 2, time: 3\}';"):
        read(file, with_rating=False)
    assert len(read(file, with_rating=False, columns={"user_id": "1", "product_id": "2", "time": "3"})) == 2


def test_fields_between_two_colons(tmp_path):
    """Columns by number, which the error for MovieLens 1M recommended, would only lead to another error."""
    file = write(tmp_path / "ratings.dat", "1::1193::5::978300760\n1::661::3::978302109\n")
    columns = {"user_id": "1", "product_id": "2", "rating": "3", "time": "4"}
    for options in ({}, {"columns": columns}):
        with pytest.raises(UserError, match=r"`sed 's/::/\\t/g' OLD > NEW` does, and name the columns by their numbers"):
            read(file, **options)
    assert len(read(write(tmp_path / "tabs.dat", file.read_text().replace("::", "\t")), columns=columns)) == 2


def test_all_files_are_recognised_before_the_first_is_read(tmp_path):
    """A wrong second file would stop the run only after the first was read to its end."""
    files = [write(tmp_path / "a.jsonl", json_lines(review())), write(tmp_path / "b.txt", "hello")]
    with pytest.raises(UserError, match=r"b\.txt has no known format"):
        read_reviews(files, Census())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user_id": "who", "product_id": "what", "rating": "stars"}, "does not name the column of the time: add time="),
        ({"user": "who"}, "columns maps 'user', which is not a field of a review; did you mean 'user_id'"),
        (
            {"user_id": "who", "product_id": "what", "rating": "stars", "time": "then"},
            "has no column 'then', which the setting columns names: its columns are who, what, stars, when",
        ),
    ],
)
def test_wrong_columns(tmp_path, columns, message):
    """A mistyped mapping would end in a traceback or in a table of nulls."""
    file = write(tmp_path / "a.csv", "who,what,stars,when\nU,P,4,1600000000\n")
    with pytest.raises(UserError, match=message):
        read(file, columns=columns)


def test_values_of_the_first_line_are_no_names_of_columns(tmp_path):
    """The first review would be the header, and be lost without a message."""
    file = write(tmp_path / "a.csv", "A3,B1,5,1369699200\nA4,B1,3,1369699201\n")
    with pytest.raises(
        UserError, match=r"columns names values of the first line of .*, which has no header: name the columns"
    ):
        read(file, columns={"user_id": "A3", "product_id": "B1", "rating": "5", "time": "1369699200"})
    rows = read(file, columns={"user_id": "1", "product_id": "2", "rating": "3", "time": "4"})
    assert len(rows) == 2


# ------------------------------------------------------------------------------------------------------- sources


def test_sources_are_files_and_globs(tmp_path):
    """A file would be left out, read twice, or come in an order that changes from run to run."""
    for name in ("b.jsonl", "a.jsonl", "c.csv", "odd[1].csv"):
        write(tmp_path / name, name)
    paths = expand_sources([str(tmp_path / "c.csv"), f"{tmp_path}/*.jsonl", f"{tmp_path}/a*", tmp_path / "odd[1].csv"], "")
    assert [path.name for path in paths] == ["c.csv", "a.jsonl", "b.jsonl", "odd[1].csv"]


def test_empty_files_of_a_glob_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folders that Spark writes, with `_SUCCESS` and parts without rows, would be refused for these."""
    for name, content in {"_SUCCESS": b"", "part-0": b"", "part-1": b"a\n1\n", "part-3": b"PAR1"}.items():
        (tmp_path / name).write_bytes(content)
    pl.DataFrame({"a": []}).write_parquet(tmp_path / "part-2")
    filled = [tmp_path / "part-1", tmp_path / "part-3"]
    assert expand_sources([f"{tmp_path}/*"], "") == filled, "a damaged file is not left out"
    assert f"empty files that match '{tmp_path}/*' are left out: _SUCCESS, part-0, part-2\n" in capsys.readouterr().err
    assert expand_sources([tmp_path / "part-0"], "") == [tmp_path / "part-0"], "a file that is named is not left out"
    assert expand_sources([f"{tmp_path}/part-0*"], "") == [tmp_path / "part-0"], "no other file is left"


def test_a_link_that_leads_nowhere_is_not_left_out(tmp_path: Path) -> None:
    """A part of the data would be missing without a message, such as files of git-annex that are not on this machine."""
    (tmp_path / "a.csv").write_bytes(b"a\n1\n")
    (tmp_path / "b.csv").symlink_to(tmp_path / "absent")
    (tmp_path / "folder.csv").mkdir()
    for source in (f"{tmp_path}/*.csv", f"{tmp_path}/b.csv"):
        with pytest.raises(
            UserError, match=r"^the link .*/b\.csv leads to no file: restore the file, or leave the link out$"
        ):
            expand_sources([source], None)
    (tmp_path / "b.csv").unlink()
    assert expand_sources([f"{tmp_path}/*.csv"], None) == [tmp_path / "a.csv"]


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "source names no file: name at least one file"),
        (["a.csv", ""], "source has an empty name, as between two commas or of an unset variable: leave it out"),
        (["https://nowhere.org/a.csv"], r"https://nowhere\.org/a\.csv is a URL, .* download it, and give the file"),
        (["nowhere.jsonl"], "the file nowhere.jsonl does not exist"),
        (["nowhere*.jsonl"], r"no file matches 'nowhere\*.jsonl'"),
        (["empty"], r"empty is a folder: name its files, as in 'empty/\*\.jsonl\.gz'"),
        (["ice"], r"ice is a folder: name its files, as in 'ice/\*\.nc'"),
        (["deep"], r"deep is a folder: name its files, as in 'deep/\*\*/\*\.csv\.gz'"),
        (["deep/a"], r"deep/a is a folder: name its files, as in 'deep/a/\*\.csv\.gz'"),
    ],
)
def test_wrong_sources(tmp_path, monkeypatch, sources, message):
    """A mistyped path would end in a traceback or an empty table."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "deep" / "a.csv").mkdir(parents=True)
    (tmp_path / "deep" / "a").mkdir()
    (tmp_path / "deep" / "a" / "b.1.csv.gz").touch()
    (tmp_path / "ice").mkdir()
    for name in ("manifest.json", "iceh.2020.nc"):  # as in a folder of generated files
        (tmp_path / "ice" / name).touch()
    with pytest.raises(UserError, match=message):
        expand_sources(sources, tmp_path)


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as one download needs."""

    content = json_lines(review())

    def do_HEAD(self):
        known = self.path == "/datasets/McAuley-Lab/Amazon-Reviews-2023/resolve/main/raw/review_categories/All_Beauty.jsonl"
        self.send_response(200 if known else 404)
        if known:
            self.send_header("ETag", '"1234"')
            self.send_header("Content-Length", str(len(self.content)))
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, *_):
        pass


HUB_SCRIPT = """
import sys
from ensemble.data.raw_files import expand_sources
from ensemble.errors import UserError
for source in sys.argv[2:]:
    try:
        print(*expand_sources([source], sys.argv[1]))
    except UserError as error:
        print("error:", error)
"""


def run_hub_script(cache, *sources, **environment):
    command = [sys.executable, "-c", HUB_SCRIPT, str(cache), *sources]
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=clean | environment, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_hub_source(tmp_path):
    """A category would not be found on the hub, or a mistyped one would end in a traceback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        path, unknown = run_hub_script(
            tmp_path, "hub:All_Beauty", "hub:All_Booty", HF_ENDPOINT=address, HF_HOME=str(tmp_path)
        )
        run_hub_script(tmp_path / "new", "hub:All_Booty", HF_ENDPOINT=address, HF_HOME=str(tmp_path))
        assert not (tmp_path / "new").exists()
    finally:
        server.shutdown()
        server.server_close()
    assert read(Path(path)).height == 1
    assert unknown.startswith("error: there is no category 'All_Booty'")


def test_hub_source_without_a_network(tmp_path):
    """A machine without a network, or with a proxy that is not supported, would show a traceback and not what to do."""
    for environment in ({"HF_HUB_OFFLINE": "1"}, {"ALL_PROXY": "socks5://127.0.0.1:9"}, {"HTTPS_PROXY": "proxy:31x8"}):
        (line,) = run_hub_script(tmp_path, "hub:All_Beauty", HF_HOME=str(tmp_path), **environment)
        assert line.startswith("error: hub:All_Beauty cannot be downloaded (")
        assert "download raw/review_categories/All_Beauty.jsonl of the dataset" in line


def test_a_folder_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of another user a pattern matches nothing, and the advice would be to check the pattern."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(UserError, match=r"cannot be read .Permission denied.: check its permissions$"):
        expand_sources([f"{tmp_path}/*.csv"], None)
