"""A hundred malformed tables and commands of scripts/fit.py: each gets one sentence, and nothing is left or replaced."""

import gzip
import io
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fit as script
import polars as pl
import pytest
import walks

from ensemble import folders
from ensemble.errors import UserError


def csv(
    header: str = "a,b,y",
    num: int = 40,
    row: Callable[[int], str] = lambda i: f"{i},{i % 7},{'yes' if i % 2 else 'no'}",
) -> bytes:
    return ("\n".join([header, *map(row, range(num))]) + "\n").encode()


def parquet(**columns: Any) -> bytes:
    out = io.BytesIO()
    pl.DataFrame(columns).write_parquet(out)
    return out.getvalue()


GOOD = csv()
N = range(40)
YES = ["yes" if i % 2 else "no" for i in N]
EXTRA = {
    "a NUL in the group": "group=g",
    "target of numbers and a word": "task=regression",
    "target infinite": "task=regression",
}

EMPTY = {"empty file": b"", "only a newline": b"\n", "only blanks": b"   \n  \n", "gzip of nothing": gzip.compress(b"")}
FOREIGN = {
    "a zip archive, as Excel files (.xlsx) are too": b"PK\x03\x04" + bytes(200),
    "an Arrow (Feather) file": b"ARROW1\0\0\xff\xff\xff\xff" + bytes(200),
    "a NumPy file": b"\x93NUMPY\x01\0v\0" + bytes(200),
    "a pickle": pickle.dumps({"a": list(N)}),
    "an SQLite database": b"SQLite format 3\0\x10\0" + bytes(200),
    "an Excel file of the .xls format": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(200),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(200),
    "an Avro file": b"Obj\x01\x04\x16avro" + bytes(200),
    "a 7-Zip archive": b"7z\xbc\xaf\x27\x1c" + bytes(200),
    "an R file (.rds, .rda)": gzip.compress(b"RDX3\nX\n\0\0\0\x03" + bytes(200)),
    "a Stata file": b"<stata_dta><header>" + bytes(200),
    "an SPSS file": b"$FL2@(#) SPSS" + bytes(200),
    "text in UTF-16": GOOD.decode().encode("utf-16"),
}
TABLES: dict[str, tuple[bytes, str]] = {
    **{name: (content, "x.csv is empty: check how it was made, or leave it out") for name, content in EMPTY.items()},
    **{
        kind: (content, f"x.csv is {kind}: unpack or convert it to UTF-8 text, gzip or Parquet")
        for kind, content in FOREIGN.items()
    },
    "only a header": (
        b"a,b,y\n",
        "x.csv has no rows below its header: check how it was made, or leave it out",
    ),
    "one row": (
        csv(num=1),
        "target=y is 'no' in every row, so there is nothing to learn: name another column",
    ),
    "nineteen rows": (
        csv(num=19),
        "19 rows have a target, and at least 20 are needed: give more",
    ),
    "one column, the target": (
        csv("y", row=lambda i: str(i % 2)),
        "no column is left to predict y from: the table has no other column",
    ),
    "binary garbage": (
        bytes(range(256)) * 40,
        r"x.csv has a column whose name '\x00\x01\x02\x03\x04\x05\x06\x07\x08' holds a NUL byte: rename it, or conv",
    ),
    "zeros": (
        bytes(4000),
        "x.csv has a column whose name '" + 20 * r"\x00" + "' holds a NUL byte: rename it, or convert the file to UTF-8",
    ),
    "a picture": (
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9,
        "the header of x.csv is not UTF-8 text (byte 0x89 after ''): convert it, as `iconv -f",
    ),
    "cut gzip": (
        gzip.compress(GOOD)[:60],
        "the gzip stream of x.csv ends early near byte 60, after 36 decompressed bytes: get the",
    ),
    "gzip with a wrong checksum": (
        gzip.compress(GOOD)[:-8] + bytes(8),
        "the gzip stream of x.csv is damaged (CRC check failed 0x0 != 0x863258dc) near byte 156,",
    ),
    "cut parquet": (
        parquet(a=list(N), y=YES)[:200],
        "x.csv is not a valid Parquet file (Parquet magic bytes not found in footer. Either the",
    ),
    "parquet magic only": (
        b"PAR1PAR1",
        "x.csv is not a valid Parquet file (Parquet file size is 8 bytes, smaller than the size",
    ),
    "parquet in gzip": (
        gzip.compress(parquet(a=list(N), y=YES)),
        "x.csv is Parquet in gzip: unpack it",
    ),
    "empty parquet": (
        parquet(a=[], y=[]),
        "x.csv has no rows: check how it was made, or leave it out",
    ),
    "latin-1 among utf-8": (
        csv(row=lambda i: f"{i},x,{'yes' if i % 2 else 'no'}").replace(b"\n5,x", b"\n5,\xe9\xff"),
        "1 of 40 rows are bad (2.50%, allowed are 1.00%): convert the files to UTF-8, as `iconv",
    ),
    "html": (
        b"<html><body>404 Not Found</body></html>\n" * 5,
        "target=y: the table has no such column; it has <html><body>404 Not Found</body></html>",
    ),
    "json array": (
        json.dumps([{"a": i, "y": YES[i]} for i in N]).encode(),
        "x.csv is one JSON list: write one object per line, as `jq -c '.[]'` does",
    ),
    "json lines, one broken of ten": (
        b"".join(json.dumps({"a": i, "y": YES[i]}).encode() + b"\n" for i in N) + b'{"a": 1, "y"\n' * 5,
        "5 of 45 rows are bad (11.11%, allowed are 1.00%): correct them, or allow more with",
    ),
    "json lines of numbers": (
        b"1\n2\n3\n" * 20,
        "target=y: the table has no such column; it has 1",
    ),
    "json lines without the target": (
        b"".join(json.dumps({"a": i}).encode() + b"\n" for i in N),
        "target=y: the table has no such column; it has a",
    ),
    "json lines with nested target": (
        b"".join(json.dumps({"a": i, "y": {"z": i}}).encode() + b"\n" for i in N),
        "target=y holds lists or objects: name a column of numbers, dates or texts",
    ),
    "ragged lines": (
        csv(row=lambda i: f"{i},{i}" if i % 3 else f"{i},1,yes"),
        "26 of 40 rows are bad (65.00%, allowed are 1.00%): correct them, or allow more",
    ),
    "more fields than columns": (
        csv(row=lambda i: f"{i},1,2,3,yes"),
        "no line of x.csv can be read: the header has 3 names (a, b, y), and line 2 is '0,1,2,3,yes': give each field",
    ),
    "titles above the names": (
        b"Sales of 2024\n(in thousands)\n" + csv(),
        "only 1 of 42 lines of x.csv can be read: the header has 1 name (Sales of 2024), and line 3 is 'a,b,y': give each",
    ),
    "escaped quotes": (
        csv(row=lambda i: f'"14\\" pizza, {i}",1,{YES[i]}' if i % 9 == 0 else f"{i},1,{YES[i]}"),
        '5 of 40 rows are bad (12.50%, allowed are 1.00%): write a quote inside quotes as "", not as \\"',
    ),
    "unclosed quote": (
        csv(row=lambda i: f'{i},"x,{YES[i]}'),
        "no line of x.csv can be read: the header has 3 names (a, b, y), and line 2 is '0,\"x,",
    ),
    "two columns alike": (
        csv("a,a,y"),
        "x.csv has two columns 'a': give each its own name",
    ),
    "two columns without a name": (
        csv(",,y"),
        "x.csv has two columns without a name: give each its own name",
    ),
    "other case of the target": (
        csv("a,b,Y"),
        "target=y: the table has no such column; did you mean 'Y'?",
    ),
    "target empty everywhere": (
        csv(row=lambda i: f"{i},1,"),
        "target=y is empty in every row, so there is nothing to learn: name another column",
    ),
    "target all alike": (
        csv(row=lambda i: f"{i},1,yes"),
        "target=y is 'yes' in every row, so there is nothing to learn: name another column",
    ),
    "target NA everywhere": (
        csv(row=lambda i: f"{i},1,NA"),
        "target=y is 'NA' in every row, so there is nothing to learn: name another column",
    ),
    "target unique texts": (
        csv(num=200, row=lambda i: f"{i},1,t{i}"),
        "target=y has 200 different texts, more than 100 classes: name another",
    ),
    "target with one yes": (
        csv(row=lambda i: f"{i},1,{'yes' if i == 3 else 'no'}"),
        "a fit needs 3 folds and as many rows of the rarer value of y, but there is 1: give",
    ),
    "target with two yes": (
        csv(row=lambda i: f"{i},1,{'yes' if i < 2 else 'no'}"),
        "a fit needs 3 folds and as many rows of the rarer value of y, but there are 2: give",
    ),
    "target of numbers and a word": (
        csv(num=200, row=lambda i: f"{i},1,{i + 0.5 if i != 7 else 'oops'}"),
        "target=y has cells that are not numbers (1): 'oops' (x.csv:9); correct them, or name them",
    ),
    "target with NA among numbers": (
        csv(num=60, row=lambda i: f"{i},1,{i + 0.5 if i % 9 else 'NA'}"),
        "target=y holds 'NA' (7) among its numbers: add missing=[NA] if that means an empty",
    ),
    "target infinite": (
        csv(num=300, row=lambda i: f"{i},1,{i + 0.5 if i != 7 else 'inf'}"),
        "target=y has cells that are not numbers (1): 'inf' (x.csv:9); correct them, or name them in",
    ),
    "target of ambiguous numbers": (
        csv(num=60, row=lambda i: f'{i},1,"{1 + i % 9},{100 + i}"'),
        "the column 'y' holds numbers such as '1,100', written as 1,234.5 or as 1.234,5: add",
    ),
    "target of lists": (
        parquet(a=list(N), y=[[i] for i in N]),
        "target=y holds List(Int64): name a column of numbers, dates or texts",
    ),
    "target of bytes": (
        parquet(a=list(N), y=[b"x" if i % 2 else b"z" for i in N]),
        "target=y holds Binary: name a column of numbers, dates or texts",
    ),
    "no feature varies": (
        csv(row=lambda i: f"1,x,{YES[i]}"),
        "no column is left to predict y from: a has one value in train; b has one value in train",
    ),
    "features are all ids": (
        csv(row=lambda i: f"id{i},name {i},{YES[i]}"),
        "no column is left to predict y from: a has 40 different texts in 40 rows of train: it",
    ),
    "features are empty": (
        csv(row=lambda i: f",,{YES[i]}"),
        "no column is left to predict y from: a is empty in train; b is empty in train",
    ),
    "features are lists": (
        parquet(a=[[i] for i in N], y=YES),
        "no column is left to predict y from: a holds List(Int64), not numbers, dates",
    ),
    "ambiguous dates": (
        csv(row=lambda i: f"{1 + i % 9:02}/{1 + i % 11:02}/2024,1,{YES[i]}"),
        "the column 'a' holds dates such as '01/10/2024', written as day/month/year or as",
    ),
    "ambiguous numbers": (
        csv(row=lambda i: f'"{1 + i % 9},{100 + i}",1,{YES[i]}'),
        "the column 'a' holds numbers such as '1,100', written as 1,234.5 or as 1.234,5: add",
    ),
    "fifteen rows with a target": (
        csv(num=60, row=lambda i: f"{i},1,{YES[i] if i < 15 else ''}"),
        "15 rows have a target, and at least 20 are needed: give more",
    ),
    "a NUL in the group": (
        parquet(a=list(N), g=[f"x\0{i % 5}" for i in N], y=YES),
        "group=g has a NUL byte in x.csv:1: remove it",
    ),
}
COMMANDS = {
    "": "the setting 'out' has no default: add out=…",
    "out=new": "the setting 'target' has no default: add target=…",
    "out=new source=[t.csv]": "the setting 'target' has no default: add target=…",
    "out=new target=y": "no table is given: name its files, as in 'source=[people.csv]'",
    "out=new source=nowhere.csv target=y": "the file nowhere.csv does not exist: check the path",
    "out=new source=[] target=y": "no table is given: name its files, as in 'source=[people.csv]'",
    "out=new source=[nowhere.csv] target=y": "the file nowhere.csv does not exist: check the path",
    "out=new source=[no*.csv] target=y": "no file matches 'no*.csv': check the pattern, and quote it against the shell",
    "out=new source=[folder] target=y": "folder is a folder: name its files, as in 'folder/*.csv'",
    "out=new source=[t.csv,other.csv] target=y": "t.csv has no column 'c', which another of the files has: give files",
    "out=new source=[t.csv target=y": "'source=[t.csv' cannot be read (while parsing a flow sequence in \"<unicode",
    "out=new source=[hub:All_Beauty] target=y": "hub:All_Beauty names reviews of products, which are not read here",
    "out=new source=[t.csv] target=": "the setting 'target' is empty: write target=…",
    "out=new source=[t.csv] target=Y": "target=Y: the table has no such column; did you mean 'y'?",
    "… targte=y": "the command line: there is no setting 'targte'; did you mean 'target'?",
    "… time_limit=soon": "the command line: time_limit=soon does not fit: write a number",
    "… time_limit=-5": "time_limit=-5.0 is impossible: it must be 0 or more",
    "… time_limit=nan": "time_limit=nan is impossible: it must be a number",
    "… time_limit=inf": "time_limit=inf is impossible: it must be finite",
    "… threads=many": "the command line: threads=many does not fit: write a whole number",
    "… threads=-2": "threads=-2 is impossible: it must be 0 or more",
    "… num_draws=0": "num_draws=0 is impossible: it must be at least 1",
    "… seed=-1": "the command line: seed=-1 is impossible: it must be a whole number from 0 to 4294967295",
    "… seed=999999999999": "the command line: seed=999999999999 is impossible: it must be a whole number from 0 to",
    "… members=[gpt]": "members=[gpt] names 'gpt', which is not available for these data: choose from ",
    "… time_limit=1:00": "the command line: 1:00 is base 60 in YAML: write a decimal number without leading zeros,",
    "… members={a:b}": "members={'a:b': ''} does not fit: write a list, as in",
    "… accelerate_config=no.yaml": "accelerate_config=no.yaml is not a file: name one of Accelerate, or write auto",
    "… accelerate_config=empty.yaml": "empty.yaml has no `key: value` lines: give a file of accelerate_configs/",
    "… accelerate_config=nodes.yaml": "nodes.yaml is for 2 machines: this command supports one; under Slurm, slurm/train",
    "… accelerate_config=text.yaml": "text.yaml: num_processes='2' is not a whole number: write one without quotes",
    "… metric=auc": "metric=auc does not fit a binary target: write one of log_loss, roc_auc, average_precision, accuracy",
    "… metric=root_mean_squared_error": "metric=root_mean_squared_error does not fit a binary target: write one of",
    "… task=guess": "the command line: task=guess does not fit: write one of '', binary, multiclass, regression,",
    "… task=regression": "task=regression, but target=y holds texts such as 'no': give task=multiclass, or leave task out",
    "… task=ranking": "task=ranking needs groups of rows that are ranked against each other: name their column with group=…",
    "… task=ranking group=b": "task=ranking, but target=y holds texts such as 'no': give task=multiclass, or leave task out",
    "out=new source=[t.csv] target=b task=binary": "task=binary, but target=b has 7 different values: leave task out,",
    "… time=z": "time=z: the table has no such column; it has a, b, y",
    "… time=y": "time=y is the target too: name another column",
    "out=new source=[words.csv] target=y time=w": "time=w holds neither numbers nor dates, such as 'word0': write",
    "… embargo=3": "embargo=3 needs an order in time: name its column with time=…, or leave embargo out",
    "… time=a embargo=-3": "embargo=-3.0 is impossible: it must be 0 or more",
    "… time=a embargo=30": "no row is left to train the model that predicts fold 0: lower embargo=30, or give more rows",
    "… time=a num_folds=39": "time=a has 40 different values, and 39 folds forward in time need 41: name another",
    "… group=z": "group=z: the table has no such column; it has a, b, y",
    "out=new source=[words.csv] target=y group=two": "as many different values of group=two, but there are 2",
    "… group=y": "group=y is the target too: name another column",
    "… weight=z": "weight=z: the table has no such column; it has a, b, y",
    "out=new source=[words.csv] target=y weight=w": "weight=w holds no numbers, such as 'word0': write",
    "out=new source=[words.csv] target=y weight=minus": "weight=minus is -3 in words.csv:2: weights must be from 0 to",
    "out=new source=[words.csv] target=y weight=zero": "weight=zero is 0 in every row: weights must be from 0 to 3e38, and",
    "… id=z": "id=z: the table has no such column; it has a, b, y",
    "… id=y": "id=y is the target too: name another column",
    "out=new source=[t.csv] target=y,b": "target=y,b: the table has no such column; it has a, b, y",
    "… drop=[z]": "drop=z: the table has no such column; it has a, b, y",
    "… drop=[y]": "drop=y is the target too: name another column",
    "… drop=[a,b]": "no column is left to predict y from: the only other columns are those of drop=[a,b]",
    "… test=1.5": "test=1.5 is impossible: it must be a part of the rows, from 0 to 0.9",
    "… test=-0.1": "test=-0.1 is impossible: it must be a part of the rows, from 0 to 0.9",
    "… test=0.9": "test=0.9 leaves 4 rows for train and 36 for test, but train needs 20 and test 1",
    "… test=0.0001": "test=0.0001 leaves 40 rows for train and 0 for test, but train needs 20 and test 1",
    "… num_folds=2": "num_folds=2 is impossible: it must be 0, 1, or 3 and more",
    "… num_folds=-3": "num_folds=-3 is impossible: it must be 0, 1, or 3 and more",
    "… num_folds=30": "num_folds=30 needs as many rows of the rarer value of y, but there are 20: lower it, or leave it out",
    "… num_folds=1.5": "the command line: num_folds=1.5 does not fit: write a whole number",
    "… max_categories=1": "max_categories=1 is impossible: it must be at least 2",
    "… max_bad_fraction=7": "max_bad_fraction=7.0 is impossible: it must be between 0 and 1",
    "… decimal=;": "the command line: decimal=; does not fit: write one of '', '.', ','",
    "… dates=year_first": "the command line: dates=year_first does not fit: write one of '', day_first, month_first",
    "… --resume": "argument --resume: expected one argument",
    "… --resume last": "argument --resume: invalid choice: 'last' (choose from 'auto')",
    "… --recipe chess": "there is no recipe 'chess': known are hot_sellers, next_item, candidates, table, sudoku, emulator,",
    "… --recipe hot_sellers": "the command line: there is no setting 'target'; known are: out, source, metadata, raw,",
    "… --recipe next_item": "the command line: there is no setting 'target'; known are: out, source, format, columns, raw,",
    "out=new --recipe next_item": "source names no file: name at least one file, glob or hub:CATEGORY",
    "out=new --recipe next_item source=[t.csv]": "t.csv has no known format of reviews (its columns are a, b, y)",
    "out=new --recipe next_item source=[walks.txt] core=1 members=[tabm]": "members=[tabm] names 'tabm', which is "
    "not available for these data: choose from sasrec, lightgbm, xgboost",
    "out=new --recipe next_item source=[few.txt] core=1": "the validation split has 60 sequences, and trees need at least "
    "67 for training: give data of more users, or, with split=time, other values of validation_from and test_from",
    "… --config no.yaml": "the configuration file no.yaml does not exist: check the path",
    "… --config list.yaml": "the configuration file list.yaml must hold `key: value` lines, not a list or a single",
    "… overwrite=perhaps": "the command line: overwrite=perhaps does not fit: write true or false",
    "… extra": "'extra' is not a setting: write key=value, as in out=…",
    "out=taken source=[t.csv] target=y": "taken exists and contains no fit of this project: choose another out",
    "out=taken source=[t.csv] target=y overwrite=true": "taken exists and contains no fit of this project: choose another",
    "out=taken source=[t.csv] target=y --resume auto": "taken exists and contains no fit of this project: choose another",
    "out=t.csv source=[t.csv] target=y": "t.csv exists and contains no fit of this project: choose another out",
    "out=t.csv/new source=[t.csv] target=y": "the folder t.csv/new cannot be created: Not a directory",
    "out=. source=[t.csv] target=y": ". exists and contains no fit of this project: choose another out",
    "out= source=[t.csv] target=y": "the setting 'out' is empty: write out=…",
    "out=foreign source=[t.csv] target=y overwrite=true": "foreign/fit.json was not written by this project, so nothing is",
    "out=damaged source=[t.csv] target=y --resume auto": "damaged/fit.json is damaged (Expecting value: line 1 column",
    "out=folder source=[folder/inside.csv] target=y": "folder exists and contains no fit of this project: choose another",
    "out=deep/er/new source=[t.csv] target=z": "target=z: the table has no such column; it has a, b, y",
    "out=new source=[t.csv] target=y target=nothing": "target=nothing: the table has no such",
    "out=new source=[words.csv] source=[t.csv] target=y": "source is given twice, as [words.csv] and as [t.csv]: write one",
    "out=prepared/new source=[t.csv] target=y": "prepared data: choose a place outside of it",
    "out=folder/new source=['folder/**/*.csv'] target=y": "out=folder/new lies where folder/**/*.csv would match",
    "out=new source=*/*/*.csv target=y": "would match files of the fit, such as ensemble/forecast.csv:",
    "out=dangling source=[t.csv] target=y": "the folder dangling cannot be created: Not a directory",
    "out=new source=[fifo] target=y": "fifo is a pipe, and sources are read more than once: write its content to a",
    "out=/proc/new source=[t.csv] target=y": "the folder /proc/new cannot be created: No such file or directory",
    "… target=z": "target=z: the table has no such column",
    "out=" + "x" * 300 + " source=[t.csv] target=y": "is too long: a file's name may have 255 bytes",
    "out=deep/" + "x" * 256 + " source=[t.csv] target=y": "cannot be created: File name too long",
}

LONG = next(command for command in COMMANDS if len(command) > 300)
AS_PROCESSES = (
    LONG,
    "",
    "… members=[gpt]",
    "… --resume last",
    "out=new --recipe next_item source=[walks.txt] core=1 members=[tabm]",
    "out=new --recipe next_item source=[few.txt] core=1",
    "out=taken source=[t.csv] target=y overwrite=true",
    "… target=z",
)
"""Commands that run in a process of their own; the others run in this one."""


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    """Every path under a folder, with its size and time of change."""
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a sound table, and all kinds of things that are in the way."""
    desk = tmp_path_factory.mktemp("desk")
    (desk / "t.csv").write_bytes(GOOD)
    (desk / "other.csv").write_bytes(csv("a,c,y"))
    words = csv("a,w,two,minus,zero,y", row=lambda i: f"{i},word{i % 3},{i % 2},{i - 3},0,{YES[i]}")
    (desk / "words.csv").write_bytes(words)
    (desk / "list.yaml").write_text("- 1\n")
    (desk / "empty.yaml").touch()
    (desk / "nodes.yaml").write_text("num_machines: 2\nnum_processes: 4\n")
    (desk / "text.yaml").write_text("num_processes: '2'\n")
    for name, num_users in (("walks.txt", 80), ("few.txt", 60)):
        walks.raw(desk, num_users=num_users).rename(desk / name)
    for name, file, content in (
        ("taken", "thesis.txt", "irreplaceable"),
        ("foreign", "fit.json", '{"a": 1}'),
        ("damaged", "fit.json", '{"a": '),
        ("folder", "inside.csv", GOOD.decode()),
    ):
        (desk / name).mkdir()
        (desk / name / file).write_text(content)
    (desk / "dangling").symlink_to("t.csv/inside")
    os.mkfifo(desk / "fifo")
    (desk / "prepared").mkdir()
    folders.write_manifest(desk / "prepared", {"kind": "prepared data", "recipe": "table"})
    return desk


def refused(words: list[str], desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The message of the command; nothing may have changed in the folder."""
    before = snapshot(desk)
    monkeypatch.chdir(desk)
    monkeypatch.setattr(sys, "argv", ["fit.py", *words])
    with pytest.raises((UserError, SystemExit)) as caught:
        script.main()
    assert snapshot(desk) == before
    printed = capsys.readouterr()
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 2
        return printed.err.splitlines()[-1]
    return str(caught.value)


@pytest.mark.parametrize("name", TABLES)
def test_a_malformed_table_gets_one_sentence(
    name: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user would see a traceback, or a fit of meaningless rows."""
    content, sentence = TABLES[name]
    (desk / "x.csv").write_bytes(content)
    words = ["out=new", "source=[x.csv]", "target=y", *([EXTRA[name]] if name in EXTRA else [])]
    assert refused(words, desk, monkeypatch, capsys).startswith(sentence)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_command_gets_one_sentence(
    command: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], child: Callable[..., Any]
) -> None:
    """The user would see a traceback, or lose a file."""
    words = command.replace("…", "out=new source=[t.csv] target=y").split()
    if command not in AS_PROCESSES:
        result = refused(words, desk, monkeypatch, capsys)
    else:
        before = snapshot(desk)
        done = child("fit", *words, folder=desk)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.count("error: ") == 1
        assert snapshot(desk) == before
        result = done.stderr.splitlines()[-1]
    assert COMMANDS[command] in result
    assert "\n" not in result


def test_there_are_a_hundred() -> None:
    """An edit would remove some of them by mistake."""
    assert len(TABLES) + len(COMMANDS) >= 100
    assert set(COMMANDS) >= set(AS_PROCESSES)
