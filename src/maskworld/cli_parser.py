"""What the sub-commands of `maskworld` share: the parser, its options, and reading overrides of a configuration."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Callable, Sequence

from maskworld.errors import ConfigError

# Every option of the sub-commands themselves; any other --word is an override of a configuration.
OPTIONS = {
    "--checkpoint",
    "--dtype",
    "--form",
    "--help",
    "--index",
    "--mask_id",
    "--out",
    "--preset",
    "--quick",
    "--run",
    "--shard_size",
    "--source",
    "--split",
    "--step",
    "--to",
    "--tokenizer",
    "--version",
}

OVERRIDES = "Any field of the configuration can be overridden: --training.steps 100 --model.width=256"


def with_joined_values(words: Sequence[str]) -> list[str]:
    """`--a.b value` as one word `--a.b=value`, so that argparse never takes the value for an argument of its own."""
    joined: list[str] = []
    for word in words:
        before = joined[-1] if joined else ""
        open_override = before.startswith("--") and "=" not in before and before not in OPTIONS
        if open_override and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


class Parser(argparse.ArgumentParser):
    """Keeps the layout of examples, takes no abbreviations, and can end its help with the fields of a configuration."""

    def __init__(self, *, fields_of: Callable[[], type] | None = None, **options):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)
        self._fields_of = fields_of

    def format_help(self) -> str:
        text = super().format_help()
        if self._fields_of is None:
            return text
        from maskworld.configure import override_help

        return f"{text}\n{override_help(self._fields_of())}\n"


def command(commands, name: str, do: Callable | None, help: str, **options) -> argparse.ArgumentParser:
    """A sub-command that calls `do`; the first sentence of `help` stands in the list of commands."""
    parser = commands.add_parser(name, help=help.split(". ")[0].rstrip("."), description=textwrap.fill(help), **options)
    if do is not None:
        parser.set_defaults(do=do)
    return parser


def overrides(unknown: Sequence[str], options: Sequence[str]) -> list[str]:
    """The words argparse did not know, if they are overrides; else a refusal that names what comes nearest."""
    for word in unknown:
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, options, n=1, cutoff=0.75)
        if name.startswith("-") and near and "." not in name:
            raise ConfigError(f"unknown option {name}; did you mean {near[0]}?")
    return list(unknown)


def refuse(unknown: Sequence[str], options: Sequence[str]) -> None:
    """Refuse all words argparse did not know: the command has no configuration to override."""
    if unknown:
        overrides(unknown, options)
        raise ConfigError(f"unknown option {unknown[0]}; this command takes {', '.join(options)}")
