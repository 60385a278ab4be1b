"""Configuration: a frozen dataclass, overridden by a YAML file, overridden by `key=value` words.

    config = load(TrainConfig, "my.yaml", ["batch_size=256", "recipe.width=64"])

A config class is frozen and keyword-only, and has a sentence (a string literal) under each field, which `describe` puts into
the text of `--help`. OmegaConf checks names and types; the errors raised here describe the problem in one sentence.
"""

import argparse
import ast
import dataclasses
import difflib
import functools
import inspect
import io
import math
import re
import textwrap
import typing
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ensemble.errors import UserError, shortened

Config = TypeVar("Config")


def load(schema: type[Config], file: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """The defaults of `schema`, overridden by the YAML `file`, overridden by the `key=value` words.

    Raises `UserError` for a file that is missing or contains no YAML mapping, a word without `=`, an unknown key (with the
    nearest known one), a value of the wrong type (with the right form) and a required setting without a value.
    """
    import yaml
    from omegaconf import OmegaConf, errors

    try:
        merged = _unlock(OmegaConf.structured(schema))
    except errors.OmegaConfBaseException as error:  # in the settings of a recipe
        raise UserError(f"the default of the setting {error.full_key} is impossible: {str(error).splitlines()[0]}") from None
    settings = [] if file is None else [(str(file), *setting) for setting in _settings(schema, read_yaml(file, schema))]
    lists: dict[str, str] = {}
    for word in overrides:
        key, equals, text = word.partition("=")
        if key != key.strip():  # 'batch_size = 64' in quotes
            key, text = key.strip(), text.strip()
        if not key or not equals or key.startswith("["):  # '[source=a.csv]'
            raise UserError(f"'{word}' is not a setting: write key=value, as in {next(field_names(schema))}=…")
        kind = type_of(schema, key)
        if kind == tuple[str, ...] and lists.setdefault(key, text) != text:  # for other types, the last word is used
            both = f"{lists[key].strip('[]')},{text.strip('[]')}"
            raise UserError(f"{key} is given twice, as {lists[key]} and as {text}: write one list, as in '{key}=[{both}]'")
        try:
            # A string is not parsed: YAML would read parts of a path as a comment or a number, and `no` as false
            if kind is str or _is_choice(kind):
                is_none = text == "null" and OmegaConf.select(merged, key) is None and not OmegaConf.is_missing(merged, key)
                new: Iterable[tuple[str, Any, Any]] = [(key, kind, None if is_none else text)]
            elif kind == tuple[str, ...]:  # BaseLoader keeps strings: yes is no boolean in missing=[yes,NA]
                new = [(key, kind, _texts_of(text))]
            else:
                if {int, float}.intersection([kind, *typing.get_args(kind)[:1]]):
                    text = _LEADING_ZEROS.sub(r"\1", text)
                _refuse_other_bases("the command line", text, kind)
                content: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"{key}={text}"]))
                new = _settings(schema, content)
        except UserError:
            raise
        except (yaml.YAMLError, errors.OmegaConfBaseException, ValueError, RecursionError) as error:
            problem = f"'{shortened(word)}' cannot be read ({_in_a_line(error)})"
            raise UserError(f"{problem}: check its brackets, and put all texts of a list in quotes, or none") from None
        settings += [("the command line", *setting) for setting in new]
    for origin, key, kind, value in settings:
        if kind is None:
            raise UserError(f"{origin}: {_unknown_key(schema, key)}")
        if value is None and dataclasses.is_dataclass(kind) and origin == str(file):
            continue  # a section whose lines are all comments
        if value is False and _is_choice(kind) and "no" in typing.get_args(kind):
            value = "no"
        try:
            if isinstance(value, dict) and any(isinstance(inner, (dict, list)) for inner in value.values()):
                raise TypeError  # OmegaConf accepts them in a dict[str, str]
            OmegaConf.update(merged, key, value)
        except (errors.OmegaConfBaseException, ValueError, TypeError) as error:
            if isinstance(error, errors.GrammarParseError):
                raise UserError(f"{origin}: {key}={value} {_UNFINISHED}") from None
            if isinstance(value, list) and "???" in value:
                fix = f"replace it in {key} and in the data, as by NA"
                raise UserError(
                    f"{origin}: ??? cannot be in a list, since it marks a setting without a value: {fix}"
                ) from None
            problem = f"{key} is empty" if value is None else f"{key}={value} does not fit"
            raise UserError(f"{origin}: {problem}: {_advice(key, kind, value)}") from None
        for element in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
            _refuse_value(origin, key, kind, element)
    try:
        config = OmegaConf.to_object(merged)
        _refuse_empty(config)
        return config  # type: ignore[return-value]
    except errors.MissingMandatoryValue as error:
        raise UserError(f"the setting '{error.full_key}' has no default: add {error.full_key}=…") from None
    except errors.OmegaConfBaseException as error:  # an interpolation ${…} of an unknown setting
        why = str(error).splitlines()[0]
        raise UserError(f"the setting '{error.full_key}' cannot be resolved: {why}; write \\${{ for ${{") from None


_UNFINISHED = "has ${, which begins the name of another setting: write \\${ for ${"
_LEADING_ZEROS = re.compile(r"((?:^|[\[{,\s]|(?<!\d):)[-+]?)0+(?=\d)")
"""Matches the leading zeros of a number such as 064, which is octal in YAML 1.1; the group is the text before them."""


# Octal numbers, numbers in base 60, and numbers with underscores that do not separate thousands
_OTHER_BASE = re.compile(r"[-+]?(0[\d_]+|.*:.*|(?!\d{1,3}(_\d{3})+$)\d+_[\d_]*)")
_TEXTS = (str, tuple[str, ...], dict[str, str])


def _refuse_other_bases(origin: str, text: str, kind: Any = None) -> None:
    """Raise `UserError` if YAML 1.1 reads a number in `text` as another one: 010 as 8, 1:30 as 90, or 2024_01 as 202401; and
    if it changes a text to an integer, such as 0x1A or 1_000.

    kind : the type of the setting in `text`, or the class of the settings; None if it is unknown.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # that of OmegaConf, which knows tabs before comments
    root = yaml.compose(text, Loader=loader)
    nodes, seen = [(root, kind)], set()
    while nodes:
        node, kind = nodes.pop()
        if id(node) in seen:  # an alias, perhaps of a node that contains it
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                inner = type_of(kind, name.value) if isinstance(kind, type) and name.id == "scalar" else kind
                nodes += [(name, None), (value, inner)]
        elif isinstance(node, yaml.SequenceNode):
            nodes += [(child, kind) for child in node.value]
        elif node is not None and (
            (_OTHER_BASE.fullmatch(node.value) and node.tag.endswith((":int", ":float")))
            or (kind in _TEXTS and node.tag.endswith(":int") and not re.fullmatch("0|-?[1-9][0-9]*", node.value))
        ):
            if ":" in node.value:
                base = "base 60"
            elif re.match("[-+]?0[0-9_]", node.value):
                base = "an octal number"
            else:
                base = f"the number {int(node.value.replace('_', ''), 0)}"
            raise UserError(
                f"{origin}: {node.value} is {base} in YAML: write a decimal number without leading zeros, or put quotes "
                "around a text"
            )


_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


@functools.cache
def _types(schema: type) -> dict[str, Any]:
    """The type of each field, without `| None`; `UserError` for a type that settings cannot have."""
    hints = typing.get_type_hints(schema)  # `field.type` is a text after `from __future__ import annotations`
    types = {}
    for field in dataclasses.fields(schema):
        kind = hints[field.name]
        options = [part for part in typing.get_args(kind) if part is not type(None)]
        is_optional = len(options) == 1 and kind == options[0] | None and not dataclasses.is_dataclass(options[0])
        types[field.name] = options[0] if is_optional else kind
        if not _is_supported(types[field.name]):
            raise UserError(
                f"{field.name} of {schema.__name__} has the type {kind}, which no setting can have: write bool, int, float, "
                "str, Literal[…] of texts, tuple[str, ...], dict[str, str], one of these with | None, or a dataclass"
            )
    return types


def _is_supported(kind: Any) -> bool:
    parts = [part for part in typing.get_args(kind) if part is not Ellipsis]
    if typing.get_origin(kind) in (tuple, dict):
        return all(part in _SCALARS or _is_choice(part) for part in parts)
    is_choice = _is_choice(kind) and all(isinstance(part, str) for part in parts)
    return kind in _SCALARS or is_choice or dataclasses.is_dataclass(kind)


def type_of(schema: type, key: str) -> Any:
    """The type of a dotted setting; None if it does not exist."""
    kind: Any = schema
    for name in key.split("."):
        kind = _types(kind).get(name) if dataclasses.is_dataclass(kind) else None  # type: ignore[arg-type]
    return kind


def _is_choice(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Literal


def _settings(schema: type, content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted name, type (None if unknown) and value of each setting in nested dicts. Values may be dicts."""
    for name, value in content.items():
        kind = _types(schema).get(name)
        if isinstance(value, dict) and isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _settings(kind, value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", kind, value


def _advice(key: str, kind: Any, value: Any) -> str:
    """The advice for a wrong value: its right form, and the nearest choice if the value seems to be misspelt."""
    choices = {str(choice).lower(): choice for choice in typing.get_args(kind)} if _is_choice(kind) else {}
    near = difflib.get_close_matches(str(value).lower(), list(choices), n=1, cutoff=0.75)
    form = _form(key, kind, value)
    return f"did you mean '{choices[near[0]]}'? Write {form}" if near else f"write {form}"


def _refuse_value(origin: str, key: str, kind: Any, value: Any) -> None:
    """Raise `UserError` for an integer beyond 64 bits, a seed that is negative or beyond 32 bits, a number in place of a
    boolean, a text that YAML converted to a boolean or a float, NaN, and a text that begins with `~/`."""
    low, high = (0, 2**32 - 1) if key.rsplit(".", 1)[-1] == "seed" else (-(2**63), 2**63 - 1)
    if isinstance(value, int) and not low <= value <= high:
        raise UserError(f"{origin}: {key}={value} is impossible: it must be a whole number from {low} to {high}")
    if kind is bool and isinstance(value, int) and value not in (0, 1):  # OmegaConf would take it for true
        raise UserError(f"{origin}: {key}={value} is impossible: it must be true or false")
    if isinstance(value, (bool, float)) and kind in _TEXTS:
        what = "no, on or off as a boolean" if isinstance(value, bool) else f"1.10 as a number, here {value}"
        raise UserError(f"{origin}: YAML reads a text such as {what}: put the text of {key} in quotes")
    if float in (kind, *typing.get_args(kind)) and re.fullmatch(r"\s*[+-]?nan\s*", str(value), re.IGNORECASE):
        raise UserError(f"{origin}: {key}={value} is impossible: it must be a number")
    if isinstance(value, str) and value.startswith("~/"):  # a folder named ~ would be created
        raise UserError(f"{origin}: {key}={value} begins with ~, which only shells expand: write the full path")


def _refuse_empty(config: Any, prefix: str = "") -> None:
    """Raise `UserError` for an empty string in a required setting."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            _refuse_empty(value, f"{name}.")
        elif field.default == "???" and value == "":
            raise UserError(f"the setting '{name}' is empty: write {name}=…")


def _texts_of(text: str) -> Any:
    """The texts of a list such as [a,b]; a text without brackets is a list of one text. Other values are read as YAML.

    A list without quotes and inner brackets is not read as YAML, where [#NV,?] and [*.csv] would not be lists of texts.
    """
    import yaml

    if text.strip()[:1] not in "[]{}":
        return [text]
    if re.fullmatch(r"""\s*\[[^][{}'"\n]*\]\s*""", text):
        *texts, last = (value.strip() for value in text.strip()[1:-1].split(","))
        if texts and not last:
            raise UserError(f"the list {text} ends with a comma: leave it out, or set the variable after it, which is empty")
        return [*texts, last] if last else texts
    listed = yaml.load(text, Loader=yaml.BaseLoader)
    return "" if listed is None else listed


def _in_a_line(error: Exception) -> str:
    """At most 500 characters of the message of a parser's error, on one line."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:500]


def _form(key: str, kind: Any, value: Any) -> str:
    """The form of a value of type `kind`, for an error message."""
    if dataclasses.is_dataclass(kind):
        return f"its settings one by one, as in {key}.{next(field_names(kind))}=…"  # type: ignore[arg-type]
    if kind in _SCALARS:
        return _SCALARS[kind]
    parts = typing.get_args(kind)
    if _is_choice(kind):
        return f"one of {', '.join(part if part.isalnum() or '_' in part else repr(part) for part in parts)}"
    if typing.get_origin(kind) is dict:
        example = {int: "1", float: "0.5"}.get(parts[-1], "b")
        fix = ""
        if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
            fix = ", with quotes around names such as 2020 and no"
        elif isinstance(value, dict) and None in value.values():
            fix = ", with a blank after the colon"
        return f"a mapping, as in '{key}={{a: {example}}}'{fix}"
    assert typing.get_origin(kind) is tuple, kind
    if _is_choice(parts[0]):
        choices = typing.get_args(parts[0])
        return f"a list of some of {', '.join(map(str, choices))}, as in '{key}=[{choices[0]}]'"
    if parts[-1] is not Ellipsis:
        return f"a list of {len(parts)}, each {_SCALARS[parts[0]]}"
    if parts[0] is str and isinstance(value, list) and None in value:
        return "quotes around null and ~, which are no texts in YAML"
    words_of_value = re.findall(r"[^\s,()[\]]+", str(value)) if isinstance(value, (str, int, float)) else ()
    return f"a list, as in '{key}=[{','.join(words_of_value) or '…'}]'"


def from_dict(
    schema: type[Config], content: dict[str, Any], problem: str = "the saved settings do not fit this version"
) -> Config:
    """The config from the result of `to_dict`; `UserError` with the `problem` if `content` does not fit the class, such as
    that of another version."""
    from omegaconf import OmegaConf, errors

    defaults = _unlock(OmegaConf.structured(schema))
    try:
        return OmegaConf.to_object(OmegaConf.merge(defaults, literal(content)))  # type: ignore[return-value]
    except (errors.OmegaConfBaseException, ValueError, TypeError) as error:
        raise UserError(f"{problem}: {str(error).splitlines()[0]}") from None


def literal(value: Any) -> Any:
    """Escape `${`, with which the name of another setting begins, in a text or in all texts of a mapping or a list."""
    if isinstance(value, dict):
        return {key: literal(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [literal(inner) for inner in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def check(
    config: Any,
    prefix: str = "",
    *,
    at_least_1: str = "",
    at_least_0: str = "",
    fractions: str = "",
    **rules: tuple[bool, str],
) -> None:
    """Raise `UserError` for the first rule that is violated.

    rules : by name of the field, whether the rule holds and what the value must be. at_least_1 and at_least_0 (both
    also finite), fractions (from 0 to 1) : names of fields with these common rules, separated by blanks.
    """
    common = {}
    for names, least, rule in ((at_least_0, 0, "0 or more"), (at_least_1, 1, "at least 1")):
        for name in names.split():
            value = getattr(config, name)
            common[name] = (least <= value < math.inf, "finite" if value == math.inf else rule)
    common |= {name: (0 <= getattr(config, name) <= 1, "between 0 and 1") for name in fractions.split()}
    for name, (holds, rule) in {**common, **rules}.items():
        if not holds:
            shown = _written(getattr(config, name)) or "''"
            raise UserError(f"{prefix}{name}={shown} is impossible: it must be {rule}")


def _written(value: Any) -> str:
    """A value as one writes it on the command line."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def read_yaml(file: str | Path, schema: type | None = None) -> dict[str, Any]:
    """The mapping in a YAML file; `UserError` for a file that is missing, damaged, or contains anything else.

    schema : the class of the settings in the file, if they are settings of this project.
    """
    import yaml
    from omegaconf import OmegaConf, errors

    try:
        text = Path(file).read_text(encoding="utf-8")  # once: it may be a pipe
        content = OmegaConf.load(io.StringIO(text))
    except FileNotFoundError:
        raise UserError(f"the configuration file {file} does not exist: check the path") from None
    except UnicodeDecodeError:
        raise UserError(f"the configuration file {file} cannot be read, as it is not UTF-8: save it as UTF-8") from None
    except errors.GrammarParseError:
        raise UserError(f"the configuration file {file} {_UNFINISHED}") from None
    except (yaml.YAMLError, ValueError, OSError, RecursionError) as error:
        raise UserError(f"the configuration file {file} cannot be read: {_in_a_line(error)}") from None
    if not OmegaConf.is_dict(content):
        raise UserError(f"the configuration file {file} must hold `key: value` lines, not a list or a single value")
    _refuse_other_bases(str(file), text, schema)
    return OmegaConf.to_container(content)  # type: ignore[return-value]


def read_accelerate_yaml(file: str | Path) -> dict[str, Any]:
    """The content of a file for `accelerate launch --config_file`; `UserError` also if it has no `key: value` lines."""
    content = read_yaml(file)
    if all(value is None for value in content.values()):  # an empty file, or a text without a colon
        raise UserError(f"{file} has no `key: value` lines: give a file of accelerate_configs/")
    return content


def from_command_line(
    schema: type[Config], description: str | None, parents: Sequence[argparse.ArgumentParser] = ()
) -> Config:
    """`load` with the words of the command line, `[--config FILE] [key=value …]`; `--help` describes every field.

    parents : parsers of a script's other options, made with add_help=False.
    """
    parser = argparse.ArgumentParser(parents=list(parents), **_help(schema, description))
    _add_settings(parser)
    options = parser.parse_intermixed_args()
    return load(schema, options.config, options.settings)


def from_subcommands(
    schemas: dict[str, type], description: str | None, parents: Sequence[argparse.ArgumentParser] = ()
) -> tuple[str, Any]:
    """As `from_command_line`, for a script with subcommands. schemas : the config class of each subcommand, by its name.

    Returns the name of the chosen subcommand, and its config.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, schema in schemas.items():
        _add_settings(commands.add_parser(name, parents=list(parents), help=schema.__doc__, **_help(schema, schema.__doc__)))
    # `others` are settings after an option: `parse_intermixed_args`, which would accept them, allows no subcommands
    options, others = parser.parse_known_args()
    if unknown := [word for word in others if word.startswith("-") or "=" not in word]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options.command, load(schemas[options.command], options.config, [*options.settings, *others])


def _help(schema: type, description: str | None) -> dict[str, Any]:
    return {
        "description": description,
        "epilog": f"settings, with their defaults:\n\n{describe(schema)}",
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="YAML with settings")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings that override the defaults and the file")


def to_dict(config: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """The config as plain dicts, tuples and scalars, which JSON can store, without the top-level settings in `without`."""
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in without}


def field_names(schema: type) -> Iterator[str]:
    """The name of every setting of a config class; those of nested classes are dotted."""
    for name, kind in _types(schema).items():
        yield from (f"{name}.{inner}" for inner in field_names(kind)) if dataclasses.is_dataclass(kind) else [name]  # type: ignore[arg-type]


def describe(schema: type, prefix: str = "") -> str:
    """A paragraph for each field, for `--help`: its name, its default, and the sentence under it in the class."""
    sentences = _sentences(schema)
    paragraphs = []
    for field in dataclasses.fields(schema):
        kind = _types(schema)[field.name]
        if dataclasses.is_dataclass(kind):
            paragraphs.append(describe(kind, f"{prefix}{field.name}."))  # type: ignore[arg-type]
            continue
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        shown = "required" if default in (dataclasses.MISSING, "???") else _written(default)
        sentence = " ".join((sentences.get(field.name, ""), _choices(kind, sentences.get(field.name, "")))).strip()
        text = textwrap.fill(sentence, 100, initial_indent="      ", subsequent_indent="      ")
        paragraphs.append(f"  {prefix}{field.name}={shown}\n{text}".rstrip())
    return "\n".join(paragraphs)


def _choices(kind: Any, sentence: str) -> str:
    """The choices of a setting with this type as a sentence, or "" if it has none or `sentence` names all of them."""
    choices = [choice for choice in typing.get_args(kind) if choice != ""] if _is_choice(kind) else []
    is_named = all(re.search(rf"\b{re.escape(str(choice))}\b", sentence) for choice in choices)
    return "" if is_named else f"One of {', '.join(map(str, choices))}."


def _sentences(schema: type) -> dict[str, str]:
    """The string literal that follows each field in the source of a dataclass."""
    sentences: dict[str, str] = {}
    for parent in reversed([base for base in schema.__mro__ if dataclasses.is_dataclass(base)]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        except (OSError, TypeError):  # a class that was created at run time has no source, but its parents have
            continue
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                assert isinstance(field.target, ast.Name)
                sentences[field.target.id] = " ".join(str(text.value.value).split())
    return sentences


def _unknown_key(schema: type, key: str) -> str:
    names = list(field_names(schema))
    if key in names:  # a dotted name, which is valid on the command line only
        part, _, name = key.rpartition(".")
        return f"there is no setting '{key}' in YAML: nest it, as in {part}: {{{name}: …}}"
    leaves = {name.rsplit(".", 1)[-1]: name for name in names}
    near = difflib.get_close_matches(key, names, n=1) or [
        leaves[leaf] for leaf in difflib.get_close_matches(key.rsplit(".", 1)[-1], list(leaves), n=1)
    ]
    advice = f"did you mean '{near[0]}'?" if near else f"known are: {', '.join(names)}"
    return f"there is no setting '{shortened(' '.join(key.split()))}'; {advice}"


def _unlock(node: Any) -> Any:
    """The same OmegaConf config, made writable: OmegaConf makes the config of a frozen dataclass read-only."""
    from omegaconf import OmegaConf

    OmegaConf.set_readonly(node, False)
    for key in node:
        child = node._get_node(key)
        if OmegaConf.is_dict(child) and child._metadata.object_type is not dict:
            _unlock(child)
    return node
