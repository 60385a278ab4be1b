"""Settings: defaults, a file, words; each mistake in one sentence; every setting explained."""

import dataclasses
import functools
import importlib.util
import inspect
import itertools
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from ensemble import configuration
from ensemble.errors import UserError
from ensemble.neural.settings import config_class
from ensemble.recipes.hot_sellers.settings import PrepareConfig

ROOT = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oven:
    """An inner group."""

    temperature_c: float = 180.0
    """Of the air, in degrees Celsius."""
    mode: Literal["fan", "grill", "no"] = "fan"
    """Where the heat comes from."""
    times_min: tuple[float, float] = (10.0, 5.0)
    """Covered, and uncovered."""

    def __post_init__(self) -> None:
        if self.temperature_c > 300:
            raise UserError(f"oven.temperature_c={self.temperature_c} burns the cake: choose at most 300")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cake:
    """A config with every kind of field."""

    name: str = "???"
    """What it is called, on more
    than one line."""
    num_eggs: int = 3
    """How many."""
    vegan: bool = False
    """Without eggs."""
    toppings: tuple[str, ...] = ()
    """In this order."""
    words: dict[str, str] = dataclasses.field(default_factory=dict)
    """From one language to another."""
    oven: Oven = dataclasses.field(default_factory=Oven)


def load(*words: str, file: Path | None = None) -> Cake:
    return configuration.load(Cake, file, ["name=Linzer", *words])


def test_no_is_a_word_where_it_is_a_choice(tmp_path: Path) -> None:
    """precision=no would be refused, for YAML reads it as false."""
    file = tmp_path / "cake.yaml"
    file.write_text("oven: {mode: no}\n")
    assert load("oven.mode=no").oven.mode == load(file=file).oven.mode == "no"
    file.write_text("toppings: [no, nut]\n")  # with missing: [no], the cells False would count as empty
    with pytest.raises(
        UserError, match=r"YAML reads a text such as no, on or off as a boolean: put the text of toppings in quotes"
    ):
        load(file=file)


def test_later_layers_win(tmp_path: Path) -> None:
    """What the user wrote would be overruled by a file or a default."""
    file = tmp_path / "cake.yaml"
    file.write_text("num_eggs: 5\nvegan: true\noven: {mode: grill}\ntoppings: [plum, nut]\nwords: {egg: Ei}\n")
    assert load() == Cake(name="Linzer")
    assert load("num_eggs=7", "oven.times_min=[1,2]", "words={flour: Mehl}", file=file) == Cake(
        name="Linzer",
        num_eggs=7,
        vegan=True,
        toppings=("plum", "nut"),
        words={"egg": "Ei", "flour": "Mehl"},
        oven=Oven(mode="grill", times_min=(1.0, 2.0)),
    )
    assert load("oven={mode: grill, temperature_c: 200}").oven == Oven(mode="grill", temperature_c=200.0)
    assert load("toppings=[a=b.jsonl]").toppings == ("a=b.jsonl",)
    assert load("toppings=[c d, '3']", file=file).toppings == ("c d", "3")
    assert load("name=a=b", "words.egg=x").name == "a=b"
    assert load("words.egg=x", "words.oil=y").words == {"egg": "x", "oil": "y"}


def test_values_have_their_types() -> None:
    """A number would arrive as text, or a list as OmegaConf's own kind, which JSON cannot hold."""
    result = load("num_eggs=4", "oven.temperature_c=150", "toppings=[nut]", "words={a: b}", "name=2023-09-30")
    types = {name: type(value) for name, value in vars(result).items()}
    assert types == {"name": str, "num_eggs": int, "vegan": bool, "toppings": tuple, "words": dict, "oven": Oven}
    assert type(result.oven.temperature_c) is float
    assert {load(f"toppings={text}").toppings for text in ("nut", "[nut,  # or not\n]")} == {("nut",)}
    texts = ("yes", "no", "NA", "1", "null", "#NV", "?", "-")  # as they are written; YAML reads some otherwise
    assert load(f"toppings=[{', '.join(texts)}]").toppings == texts
    assert result.name == "2023-09-30"
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.num_eggs = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("num_egs=4", "the command line: there is no setting 'num_egs'; did you mean 'num_eggs'?"),
        (
            "oven.temprature_c=4",
            "the command line: there is no setting 'oven.temprature_c'; did you mean 'oven.temperature_c'?",
        ),
        ("temperature_c=4", "the command line: there is no setting 'temperature_c'; did you mean 'oven.temperature_c'?"),
        ("mod=grill", "the command line: there is no setting 'mod'; did you mean 'oven.mode'?"),
        ("toppings=[nut,]", "the list [nut,] ends with a comma: leave it out, or set the variable after it, which is empty"),
        ("oven={mod: fan}", "the command line: there is no setting 'oven.mod'; did you mean 'oven.mode'?"),
        (
            "qqqqq=4",
            "the command line: there is no setting 'qqqqq'; known are: name, num_eggs, vegan, toppings, words, "
            "oven.temperature_c, oven.mode, oven.times_min",
        ),
        ("name=~/cake", "the command line: name=~/cake begins with ~, which only shells expand: write the full path"),
        (
            "toppings=[nut,~/fig]",
            "the command line: toppings=~/fig begins with ~, which only shells expand: write the full path",
        ),
        ("num_eggs=four", "the command line: num_eggs=four does not fit: write a whole number"),
        ("num_eggs=2.5", "the command line: num_eggs=2.5 does not fit: write a whole number"),
        ("num_eggs=", "the command line: num_eggs is empty: write a whole number"),
        ("num_eggs.x=1", "the command line: num_eggs={'x': 1} does not fit: write a whole number"),
        ("vegan=perhaps", "the command line: vegan=perhaps does not fit: write true or false"),
        ("oven.temperature_c=hot", "the command line: oven.temperature_c=hot does not fit: write a number"),
        ("oven.mode=steam", "the command line: oven.mode=steam does not fit: write one of fan, grill, no"),
        ("oven.times_min=[1]", "the command line: oven.times_min=[1] does not fit: write a list of 2, each a number"),
        ("oven.times_min=[1,x]", "the command line: oven.times_min=[1, 'x'] does not fit: write a list of 2, each a number"),
        ("oven=3", "the command line: oven=3 does not fit: write its settings one by one, as in oven.temperature_c=…"),
        ("oven=null", "the command line: oven is empty: write its settings one by one, as in oven.temperature_c=…"),
        ("toppings={a: b}", "the command line: toppings={'a': 'b'} does not fit: write a list, as in 'toppings=[…]'"),
        ("toppings=", "the command line: toppings= does not fit: write a list, as in 'toppings=[…]'"),
        (
            "oven.temperature_c=1:30",
            "the command line: 1:30 is base 60 in YAML: write a decimal number without leading zeros, or put quotes "
            "around a text",
        ),
        (
            "words={a: 010}",
            "the command line: 010 is an octal number in YAML: write a decimal number without leading zeros, or put quotes "
            "around a text",
        ),
        ("words=egg", "the command line: words=egg does not fit: write a mapping, as in 'words={a: b}'"),
        ("words={a: [b]}", "the command line: words={'a': ['b']} does not fit: write a mapping, as in 'words={a: b}'"),
        ("words.a.b=c", "the command line: words={'a': {'b': 'c'}} does not fit: write a mapping, as in 'words={a: b}'"),
        ("eggs", "'eggs' is not a setting: write key=value, as in name=…"),
        ("=3", "'=3' is not a setting: write key=value, as in name=…"),
        ("[toppings=nut]", "'[toppings=nut]' is not a setting: write key=value, as in name=…"),
        ("", "'' is not a setting: write key=value, as in name=…"),
        ("oven.temperature_c=900", "oven.temperature_c=900.0 burns the cake: choose at most 300"),
        ("name=???", "the setting 'name' has no default: add name=…"),
        ("name=${nobody}", "the setting 'name' cannot be resolved: Interpolation key 'nobody' not found; write \\${ for ${"),
    ],
)
def test_a_mistake_is_one_sentence(word: str, sentence: str) -> None:
    """A mistake would end in a traceback, or in a message of a library that users do not understand."""
    with pytest.raises(UserError) as error:
        load(word)
    assert str(error.value) == sentence


def test_numbers_are_decimal() -> None:
    """Seeds numbered by `printf %03d` would be octal, so that 008 and 010 are the same."""
    numbers = {"08": 8, "008": 8, "010": 10, "-010": -10, "0": 0, "1_000": 1000}
    assert {text: load(f"num_eggs={text}").num_eggs for text in numbers} == numbers
    assert load("oven.times_min=[01.5, 010]").oven.times_min == (1.5, 10.0)
    assert [load(f"oven.temperature_c={text}").oven.temperature_c for text in ("1e-05", "0.05", "00.5")] == [1e-5, 0.05, 0.5]
    assert load("toppings=[010]", "words={a: '010'}").toppings == ("010",)
    assert load("name=010").name == "010"


def test_blanks_around_the_equals_sign_are_no_part_of_a_setting() -> None:
    """The message would say that a setting does not exist, and suggest the same one."""
    assert load("num_eggs = 4").num_eggs == load(" num_eggs=4").num_eggs == 4


def test_an_empty_section_of_a_file_keeps_the_defaults(tmp_path: Path) -> None:
    """A file whose settings are all comments would be refused."""
    file = tmp_path / "cake.yaml"
    file.write_text("oven:\n  # mode: grill\n")
    assert load(file=file).oven == Oven()


def test_a_text_is_taken_as_it_stands() -> None:
    """A folder called 'new #2' would be read as 'new', and one called 12 or [a] refused."""
    for text in ("new #2", "12", "[a]", "a=b", "'x'", "a: b"):
        assert load(f"name={text}").name == text


def test_a_list_of_one_text_needs_no_brackets() -> None:
    """The first command that a new user types names one file, and its name may have characters that YAML interprets."""
    for text in ("nut", "yes", "a: b #1.csv", "3"):
        assert configuration.load(Cake, None, ["name=x", f"toppings={text}"]).toppings == (text,)


def test_a_list_is_given_once() -> None:
    """With drop=a drop=b only b would be dropped, without a message."""
    with pytest.raises(UserError) as error:
        load("toppings=nut", "toppings=[fig,plum]")
    assert str(error.value) == (
        "toppings is given twice, as nut and as [fig,plum]: write one list, as in 'toppings=[nut,fig,plum]'"
    )
    assert load("toppings=nut", "num_eggs=4", "toppings=nut", "num_eggs=5") == load("toppings=nut", "num_eggs=5")


def test_a_table_in_place_of_settings_is_not_printed(tmp_path: Path) -> None:
    """The whole table would be the name of a setting in the error."""
    (tmp_path / "table.csv").write_text("id,age\n" + "0001,26\n" * 1000)
    with pytest.raises(UserError, match="there is no setting 'id,age 0001,26") as error:
        load(file=tmp_path / "table.csv")
    assert len(str(error.value)) < 500


def test_brackets_that_do_not_close() -> None:
    """Brackets that the shell has changed would end in a traceback of the YAML parser."""
    for word in ("toppings=[nut", "words={a", "toppings=]", 'toppings=["nut",*.csv]'):
        fix = "check its brackets, and put all texts of a list in quotes, or none"
        with pytest.raises(UserError, match=rf"cannot be read \(.*\): {fix}$") as error:
            load(word)
        assert "\n" not in str(error.value)


def test_a_pattern_in_brackets_needs_no_quotes() -> None:
    """YAML takes *.csv for an alias, and a shell removes the quotes of ["*.csv"]: source=[*.csv] would be refused."""
    assert load("toppings=[nut, *.csv]").toppings == load('toppings=["nut", "*.csv"]').toppings == ("nut", "*.csv")


def test_a_required_setting_is_asked_for() -> None:
    """A run would begin without a folder, and fail in the middle."""
    with pytest.raises(UserError, match=r"^the setting 'name' has no default: add name=…$"):
        configuration.load(Cake)
    with pytest.raises(UserError, match=r"^the setting 'out' has no default: add out=…$"):
        configuration.load(PrepareConfig)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"num_eggs: [1", "cannot be read"),
        (b"\xff\xfe\xfa", "cannot be read"),
        (b"num_eggs: 1\nnum_eggs: 2\n", "cannot be read"),
        (b"a\tb: {]", "cannot be read"),
        (b"- 1\n- 2\n", "must hold `key: value` lines, not a list or a single value"),
        (b"num_eggs: many\n", "num_eggs=many does not fit: write a whole number"),
        (b"oven:\n  mood: fan\n", "there is no setting 'oven.mood'; did you mean 'oven.mode'?"),
        (b"3: 4\n", "there is no setting '3'; known are: name,"),
        (b"oven.mode: fan\n", "there is no setting 'oven.mode' in YAML: nest it, as in oven: {mode: …}"),
        (b"toppings: nut\n", "toppings=nut does not fit: write a list"),
        (b"num_eggs: 010\n", ": 010 is an octal number in YAML: write a decimal number without leading zeros, or put"),
        (b"toppings: [10:30]\n", ": 10:30 is base 60 in YAML: write a decimal number"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    """A mistake in a file would be looked for on the command line, or end in a traceback."""
    file = tmp_path / "cake.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError) as error:
        load(file=file)
    assert sentence in str(error.value)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """A wrong path would end in a traceback, or an empty file in an error."""
    with pytest.raises(UserError, match=r"the configuration file .*nowhere.yaml does not exist: check the path$"):
        load(file=tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match=r"the configuration file .* cannot be read"):
        load(file=tmp_path)
    pipe, content = os.pipe()
    os.write(content, b"num_eggs: 010\n")
    os.close(content)
    with pytest.raises(UserError, match="010 is an octal number in YAML"):  # as of `--config <(command)`
        load(file=Path(f"/dev/fd/{pipe}"))
    os.close(pipe)
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert load(file=tmp_path / "empty.yaml") == Cake(name="Linzer")


def test_round_trip_through_json() -> None:
    """A member could not be loaded with the settings that it was trained with."""
    cake = load("toppings=[nut]", "words={a: b}", "oven.times_min=[1,2]", "oven.mode=grill")
    assert configuration.from_dict(Cake, json.loads(json.dumps(configuration.to_dict(cake)))) == cake
    settings: Any = configuration.load(config_class("hot_sellers"), None, ["data=a", "out=b", "recipe.width=8"])
    assert configuration.to_dict(
        configuration.from_dict(config_class("hot_sellers"), configuration.to_dict(settings))
    ) == configuration.to_dict(settings)


@pytest.mark.parametrize(
    "change", [{"num_eggs": "x"}, {"flour": 1}, {"oven": 3}, {"toppings": {"a": 1}}, {"oven": {"mode": "steam"}}]
)
def test_settings_of_another_version_are_refused(change: dict[str, Any]) -> None:
    """A model of another version would be loaded with settings that mean something else."""
    with pytest.raises(UserError, match=r"^the saved settings do not fit this version: "):
        configuration.from_dict(Cake, configuration.to_dict(load()) | change)


# ------------------------------------------------------------------------------------------------ the command line


def test_words_files_and_flags_may_be_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train.py out=x --resume data=y` would be refused, for no reason that a user can see."""
    import argparse

    (tmp_path / "cake.yaml").write_text("num_eggs: 6\n")
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--resume", action="store_true")
    words = ["name=Linzer", "--config", str(tmp_path / "cake.yaml"), "vegan=true", "--resume", "toppings=[nut]"]
    monkeypatch.setattr(sys, "argv", ["bake.py", *words])
    assert configuration.from_command_line(Cake, "Bake.", [parser]) == Cake(
        name="Linzer", num_eggs=6, vegan=True, toppings=("nut",)
    )


def test_help_describes_every_setting() -> None:
    """A user would have to read the source to learn what a setting means or what its default is."""
    assert configuration.describe(Cake).splitlines() == [
        "  name=required",
        "      What it is called, on more than one line.",
        "  num_eggs=3",
        "      How many.",
        "  vegan=false",
        "      Without eggs.",
        "  toppings=[]",
        "      In this order.",
        "  words={}",
        "      From one language to another.",
        "  oven.temperature_c=180.0",
        "      Of the air, in degrees Celsius.",
        "  oven.mode=fan",
        "      Where the heat comes from. One of fan, grill, no.",
        "  oven.times_min=[10.0, 5.0]",
        "      Covered, and uncovered.",
    ]


def load_module(path: Path) -> ModuleType:
    """A script as a module; importing it runs nothing."""
    name = f"script_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def every_config_class() -> dict[str, type]:
    """The config classes of all config modules and scripts, and those of trainings with the settings of a recipe."""
    modules = [
        importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
        for root in (ROOT, ROOT / "scripts")
        for path in (root / ("ensemble" if root == ROOT else "benchmarks")).rglob("settings.py")
    ] + [load_module(path) for folder in ("scripts", "ensemble/commands") for path in (ROOT / folder).glob("[!_]*.py")]
    result = {
        f"{module.__name__}.{name}": member
        for module in modules
        for name, member in inspect.getmembers(module, inspect.isclass)
        if dataclasses.is_dataclass(member) and member.__module__ == module.__name__
    }
    return result | {f"recipe {name}": config_class(name) for name in ("hot_sellers", "next_item")}


CONFIG_CLASSES = every_config_class()


def test_the_config_classes_are_found() -> None:
    """The next tests would check nothing."""
    names = {name.rsplit(".", 1)[-1] for name in CONFIG_CLASSES}
    assert {"PrepareConfig", "PanelConfig", "MarketConfig", "TrainConfig", "RecipeConfig", "TreesConfig"} <= names
    assert {"FitConfig", "PredictConfig", "recipe hot_sellers"} <= names


@pytest.mark.parametrize("name", CONFIG_CLASSES)
def test_every_setting_has_a_sentence(name: str) -> None:
    """A setting would be in --help without a description."""
    schema: Any = CONFIG_CLASSES[name]
    assert schema.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(schema))
    assert name.startswith("recipe") or schema.__doc__.strip().endswith("."), "the class needs a sentence too"
    lines = configuration.describe(schema).splitlines()
    described = {line.strip().split("=")[0]: text for line, text in itertools.pairwise([*lines, ""]) if line[2:3].strip()}
    assert list(described) == list(configuration.field_names(schema))
    for setting, text in described.items():
        assert text.startswith("      ")
        assert text.strip(), f"{setting} needs a sentence"


@pytest.mark.parametrize("name", CONFIG_CLASSES)
def test_every_config_class_can_be_loaded(name: str) -> None:
    """A field would have a type or a default that OmegaConf refuses, or that the errors cannot describe."""
    schema: Any = CONFIG_CLASSES[name]
    required = [field.name for field in dataclasses.fields(schema) if field.default == "???"]
    result: Any = configuration.load(schema, None, [f"{setting}=x" for setting in required])
    words = re.findall("^  ([^ =]+=.*)", configuration.describe(schema).replace("=required", "=x"), re.MULTILINE)
    assert configuration.load(schema, None, words) == result, "--help shows defaults as one writes them"
    assert configuration.from_dict(schema, json.loads(json.dumps(configuration.to_dict(result)))) == result
    for setting in configuration.field_names(schema):
        if configuration.type_of(schema, setting) is str:
            continue  # a text is taken as it stands
        wrong = "x" if isinstance(functools.reduce(getattr, setting.split("."), result), dict) else "{a: b}"
        with pytest.raises(UserError, match=f"^the command line: {setting}=.* does not fit: write "):
            configuration.load(schema, None, [f"{setting}={wrong}"])


def test_a_class_may_explain_a_field_anew() -> None:
    """A class that narrows another one's field would show the old sentence."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Custard(Cake):
        num_eggs: int = 9
        """The more the better."""

    lines = configuration.describe(Custard).splitlines()
    assert lines[lines.index("  num_eggs=9") + 1] == "      The more the better."
    assert "      Without eggs." in lines


def test_a_missing_sentence_would_be_seen() -> None:
    """The test above could not fail."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Silent:
        loud: int = 1
        """With a sentence."""
        quiet: int = 2

    assert configuration.describe(Silent).splitlines() == ["  loud=1", "      With a sentence.", "  quiet=2"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers:
    """Settings that libraries take as numbers of 32 or 64 bits."""

    target: str = "???"
    """A required text."""
    seed: int = 0
    """Of draws."""
    rows: int = 0
    """Any whole number."""
    share: float = 0.0
    """Any number."""
    refit: bool = False
    """Whether, not how often."""
    task: Literal["binary", "regression"] = "binary"
    """A choice."""
    monotone: dict[str, int] = dataclasses.field(default_factory=dict)
    """Numbers by name."""
    widths: tuple[int, ...] = ()
    """A list."""


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("seed=999999999999999999999", "seed=999999999999999999999 is impossible: it must be a whole number from 0 to"),
        ("seed=4294967296", r"from 0 to 4294967295$"),
        ("seed=-1", r"seed=-1 is impossible: it must be a whole number from 0 to 4294967295$"),
        ("rows=9223372036854775808", "it must be a whole number from -9223372036854775808 to 9223372036854775807"),
        ("share=nan", "the command line: share=nan is impossible: it must be a number$"),
        ("refit=3", "the command line: refit=3 is impossible: it must be true or false$"),
        ("monotone={a: 99999999999999999999}", "monotone=99999999999999999999 is impossible"),
        (f"seed={'9' * 5000}", "(cannot be read|is impossible|does not fit)"),
        (f"monotone={'[' * 3000}", "cannot be read .*: check its brackets, and put all texts of a list in quotes, or none"),
        ("task=Binary", "task=Binary does not fit: did you mean 'binary'. Write one of binary, regression"),
        ("task=regresion", "did you mean 'regression'"),
        ("widths=(64, 32)", r"does not fit: write a list, as in 'widths=\[64,32\]'$"),
        ("target=", r"^the setting 'target' is empty: write target=…$"),
    ],
)
def test_values_that_no_library_takes_are_refused(word: str, sentence: str) -> None:
    """A seed of 70 bits, or nothing at all for a name, would end in a traceback hours later or not be noticed."""
    with pytest.raises(UserError, match=sentence) as caught:
        configuration.load(Numbers, overrides=["target=x", word])
    assert len(str(caught.value)) < 6000
    assert configuration.load(Numbers, overrides=["target=x", "seed=4294967295"]).seed == 4294967295


def test_a_file_of_brackets_is_refused(tmp_path: Path) -> None:
    """The YAML parser recurses for every bracket, so that many brackets would end in a traceback."""
    for content in ("a: " + "[" * 3000, "a: " + "[" * 3000 + "]" * 3000, "{" * 3000):
        (tmp_path / "deep.yaml").write_text(content)
        with pytest.raises(UserError, match=r"deep.yaml cannot be read: (it is nested too deeply$|while parsing)"):
            configuration.load(Numbers, tmp_path / "deep.yaml")
