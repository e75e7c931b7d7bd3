"""From an experiment file and command-line overrides to one checked `Experiment`, and to and from `config.json`.

    config = load_experiment("experiments/quickstart.py")
    config = override(config, ["--training.steps", "100"])
    validate(config)

Every refusal is a ConfigError that names the field; an unknown field also names the nearest known one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import json
import runpy
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from maskworld.config import Experiment
from maskworld.config_rules import problems
from maskworld.errors import ConfigError
from maskworld.storage import write_text

CONFIG_FILE = "config.json"
Config = TypeVar("Config")

# A resumed run may differ from the saved one in these: how far (which stretches the decay of the
# learning rate), how often, where and how fast; never in data, model or objective.
FREE_ON_RESUME = (
    "name",
    "data.workers",
    "model.attention",
    "model.remat",
    "training.steps",
    "training.log_every",
    "training.validate_every",
    "training.validation_batches",
    "training.checkpoint_every",
    "training.keep_last",
    "training.keep_best",
    "mesh.",
    "sampler.",
    "evaluation.",
)


def load_experiment(reference: str) -> Experiment:
    """The value an experiment file holds: `path.py` means its `config`, `path.py:name` another Experiment in it.

    `path.json` is the `config.json` of a run.

    Raises:
        ConfigError: no such file, the file fails when run, or the name is absent or not an Experiment.
    """
    path, _, name = reference.partition(":")
    name = name or "config"
    if not Path(path).is_file():
        near = difflib.get_close_matches(path, map(str, Path("experiments").glob("*.py")), n=1, cutoff=0.4)
        raise ConfigError(f"no experiment file {path}" + (f"; did you mean {near[0]}?" if near else ""))
    if path.endswith(".json"):
        return load_config(Path(path))
    try:
        values = runpy.run_path(path)
    except Exception as error:
        where = _line_in(error, path)
        raise ConfigError(f"{path}{where}: {type(error).__name__}: {error}") from error
    if not isinstance(values.get(name), Experiment):
        known = [key for key, value in values.items() if isinstance(value, Experiment)]
        held = f"it holds {', '.join(known)}" if known else "it holds none"
        raise ConfigError(f"{path} has no Experiment called `{name}`; {held}")
    return values[name]


def override(config: Config, arguments: Sequence[str]) -> Config:
    """`config` with `--dotted.key value` (or `--dotted.key=value`) applied in order; types are those of the fields.

    Args:
        config: an Experiment or any other frozen dataclass of plain values, tuples (`4,8`) and such dataclasses.

    Raises:
        ConfigError: unknown key (the nearest known key is named), missing value or value of another type.
    """
    pairs = list(_pairs(arguments))
    types = field_types(type(config))
    for key, value in pairs:
        if key not in types:
            raise ConfigError(f"unknown configuration key --{key}; nearest known key: --{nearest_key(key, types)}")
        if value is None:
            raise ConfigError(f"--{key} needs a value: {_expected(types[key])}")
    if not pairs:
        return config
    parsed = _tyro(config, pairs)
    if parsed is not None:
        return parsed
    for key, value in pairs:
        if _tyro(config, [(key, value)]) is None:
            raise ConfigError(f"--{key}: {value!r} is not {_expected(types[key])}")
    raise ConfigError(f"cannot read the overrides {' '.join(arguments)}")


def override_help(kind: type = Experiment) -> str:
    """Every key with its type, meaning and default, as tyro prints it."""
    import tyro

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=["--help"], prog="", use_underscores=True, config=(tyro.conf.FlagConversionOff,))
    return printed.getvalue().split("\n", 2)[-1].strip("\n")


def nearest_key(key: str, known: Iterable[str] | None = None) -> str:
    """The known dotted key (of an Experiment) most like `key`; a bare last part (`steps`) finds its field too."""
    known = list(field_types() if known is None else known)
    last = key.split(".")[-1].replace("-", "_")
    same_last = [name for name in known if name.split(".")[-1] == last]
    spelled = key.replace("-", "_")
    if same_last:
        return max(same_last, key=lambda name: difflib.SequenceMatcher(None, name, spelled).ratio())
    return max(
        known,
        key=lambda name: max(
            difflib.SequenceMatcher(None, name, spelled).ratio(),
            difflib.SequenceMatcher(None, name.split(".")[-1], last).ratio(),
        ),
    )


def field_types(kind: type = Experiment) -> dict[str, Any]:
    """Dotted key -> type of every leaf of a configuration."""
    return dict(_types(kind, ""))


def to_dict(config: Experiment) -> dict[str, Any]:
    """Plain JSON values."""
    return dataclasses.asdict(config)


def from_dict(values: Any, where: str) -> Experiment:
    """The Experiment that `to_dict` gave; fields that are absent keep their defaults.

    Args:
        where: what the values came from, for the messages.

    Raises:
        ConfigError: a key that is not known, a value of another type.
    """
    config = _build(Experiment, values, "", where)
    _check_types(config, where)
    return config


def save_config(path: Path, config: Experiment) -> None:
    """Write `config.json` at once.

    Raises:
        StorageError: the folder cannot be written.
    """
    write_text(path, json.dumps(to_dict(config), indent=2) + "\n")


def load_config(path: Path) -> Experiment:
    """Read what `save_config` wrote.

    Raises:
        ConfigError: no such file, not JSON, an unknown key or a value of another type; names file and field.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no {path}: {path.parent} is not a run folder, or its training never started") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return from_dict(values, str(path))


def differences(old: Experiment, new: Experiment) -> list[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of every field that differs, in the order of the fields."""
    before, after = dict(leaves(old)), dict(leaves(new))
    return [(key, before[key], after[key]) for key in before if before[key] != after[key]]


def check_resumable(saved: Experiment, wanted: Experiment, step: int) -> None:
    """Refuse to go on from `step` of a run with another meaning.

    Raises:
        ConfigError: names each field that differs and may not, with both values; also fewer steps than were done.
    """
    bad = [
        f"  {key}: the run has {old!r}, you gave {new!r}"
        for key, old, new in differences(saved, wanted)
        if not any(key == free or (free.endswith(".") and key.startswith(free)) for free in FREE_ON_RESUME)
    ]
    if bad:
        raise ConfigError(
            "this run cannot be resumed with another configuration:\n"
            + "\n".join(bad)
            + "\nGive the run's own values, or another --run folder for a new run."
        )
    if wanted.training.steps < step:
        raise ConfigError(f"training.steps: {wanted.training.steps} is below the {step} steps that were already done")


def validate(config: Experiment, where: str = "configuration") -> Experiment:
    """Return `config` if every field has its type and all fields fit each other.

    Raises:
        ConfigError: one line for each problem, each naming its field.
    """
    _check_types(config, where)
    found = list(problems(dict(leaves(config))))
    if found:
        raise ConfigError(f"{where} cannot be used:\n" + "\n".join(f"  {problem}" for problem in found))
    return config


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value


def _types(kind: type, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from _types(hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", hint


def _build(kind: type, values: Any, prefix: str, where: str) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: {prefix.rstrip('.') or 'the file'} must be an object with named fields")
    hints = typing.get_type_hints(kind)
    known: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            key = f"{prefix}{name}"
            raise ConfigError(f"{where}: unknown configuration key {key}; nearest known key: {nearest_key(key)}")
        if dataclasses.is_dataclass(hints[name]):
            value = _build(hints[name], value, f"{prefix}{name}.", where)
        elif typing.get_origin(hints[name]) is tuple and isinstance(value, list):
            value = tuple(value)  # JSON knows no tuples
        known[name] = value
    return kind(**known)


def _check_types(config: Experiment, where: str) -> None:
    types = field_types()
    for key, value in leaves(config):
        if not _fits(types[key], value):
            raise ConfigError(f"{where}: {key} is {value!r}, which is not {_expected(types[key])}")


def _fits(hint: Any, value: Any) -> bool:
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(typing.get_args(hint)[0], item) for item in value)
    if hint is bool or isinstance(value, bool):
        return hint is bool and isinstance(value, bool)
    return isinstance(value, (int, float) if hint is float else hint)


def _expected(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return "values joined by commas, each " + _expected(typing.get_args(hint)[0])
    return {int: "a whole number", float: "a number", bool: "True or False", str: "text"}[hint]


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    position = 0
    while position < len(arguments):
        key, equals, value = arguments[position].partition("=")
        if not key.startswith("--"):
            raise ConfigError(f"`{key}` is not an override; write --some.key value")
        follows = _value_follows(arguments, position)
        yield key[2:].replace("-", "_"), value if equals else arguments[position + 1] if follows else None
        position += 2 if follows else 1


def _value_follows(arguments: Sequence[str], position: int) -> bool:
    """Whether the word after `position` is its value. One that starts with `--` must be joined by `=` to count."""
    last = position + 1 == len(arguments)
    return "=" not in arguments[position] and not last and not arguments[position + 1].startswith("--")


def _tyro(config: Config, pairs: Sequence[tuple[str, str | None]]) -> Config | None:
    """The overridden value, or None where tyro refuses; its own error box is not shown."""
    import tyro

    types = field_types(type(config))
    arguments: list[str] = []
    for key, value in pairs:
        if typing.get_origin(types[key]) is tuple:
            arguments += [f"--{key}", *filter(None, str(value).split(","))]
        else:  # tyro wants True and False with capitals; a person at a shell should not have to
            arguments.append(f"--{key}={str(value).capitalize() if types[key] is bool else value}")
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return tyro.cli(
                type(config),
                args=arguments,
                default=config,
                use_underscores=True,
                config=(tyro.conf.FlagConversionOff,),
                console_outputs=False,
            )
        except SystemExit:
            return None


def _line_in(error: BaseException, path: str) -> str:
    """`:LINE` of the deepest frame of the experiment file itself, where there is one."""
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == path:
            line = frame.tb_lineno
        frame = frame.tb_next
    if line is None and isinstance(error, SyntaxError):
        line = error.lineno
    return f":{line}" if line is not None else ""
