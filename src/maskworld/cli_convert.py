"""The commands `maskworld convert ...`: weights of Hugging Face to a run, and a run to such weights."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from maskworld.cli_parser import command, refuse
from maskworld.errors import ConfigError

_DTYPES = ("keep", "float32", "bfloat16", "float16")

_HF_EXAMPLES = """
examples:
  maskworld convert hf ../SDAR-4B-Chat --to runs/sdar
  maskworld convert hf ../Qwen3-8B --to runs/qwen --dtype bfloat16
  maskworld convert hf ../WeDLM-8B --to runs/wedlm --mask_id 151669

DIR holds config.json and safetensors, whole or in shards, as transformers 4 or 5 saves them. Families: SDAR, SDAR-MoE,
Qwen3, Qwen3-MoE, Mistral, LFM2 and LFM2.5, LLaDA, WeDLM. All names and shapes are checked before anything is written,
and nothing is left behind where something is wrong. Models that predict the next token have no mask: the first row of
the embedding without a token becomes one, and the command says which. Block length is config.json's block_size, or 4.
"""

_EXPORT_EXAMPLES = """
examples:
  maskworld convert export runs/sdar --to ../SDAR-4B-mine
  maskworld convert export runs/sdar --to ../out --checkpoint latest --dtype bfloat16 --shard_size 2GB

Writes safetensors (in shards, with an index), config.json and, where the run came from such a folder, its tokenizer
files: what transformers, SGLang and lmdeploy load. Low-rank updates are merged into the weights.
"""


def add_convert_commands(commands) -> None:
    hf = command(
        commands,
        "hf",
        _hf,
        "Make a run from a Hugging Face folder: its weights become the checkpoint of step 0",
        epilog=_HF_EXAMPLES,
    )
    hf.add_argument("folder", metavar="DIR", help="folder with config.json and *.safetensors")
    hf.add_argument("--to", metavar="RUN", required=True, help="run folder to make; it must not be there yet")
    hf.add_argument(
        "--tokenizer", metavar="PATH", help="folder or tokenizer.json to take instead of the tokenizer in DIR"
    )
    hf.add_argument(
        "--dtype", default="keep", choices=_DTYPES, help="of the weights in the run; keep (default) changes no bit"
    )
    hf.add_argument("--mask_id", metavar="ID", help="id that masks, instead of config.json's mask_token_id")

    export = command(
        commands,
        "export",
        _export,
        "Write a checkpoint of a run as a Hugging Face folder",
        epilog=_EXPORT_EXAMPLES,
    )
    export.add_argument("run", metavar="RUN", help="folder of a run")
    export.add_argument("--to", metavar="DIR", required=True, help="folder to make; it must not be there yet")
    export.add_argument(
        "--checkpoint", default="best", metavar="WHICH", help="best (default, by validation loss), latest, or a step"
    )
    export.add_argument(
        "--dtype", default="keep", choices=_DTYPES, help="of the weights; keep (default) is the checkpoint's"
    )
    export.add_argument("--shard_size", default="5GB", metavar="SIZE", help="most of one file, as 5GB (default), 500MB")


def _hf(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    refuse(unknown, ("--to", "--tokenizer", "--dtype", "--mask_id"))
    if options.mask_id is not None and not options.mask_id.isdecimal():
        raise ConfigError(f"--mask_id: {options.mask_id!r} is no token id")
    from maskworld.conversion.from_hugging_face import convert

    notes = convert(
        Path(options.folder),
        Path(options.to),
        tokenizer=Path(options.tokenizer) if options.tokenizer else None,
        dtype=_dtype(options.dtype),
        mask_id=int(options.mask_id) if options.mask_id is not None else None,
        bar=_bar,
    )
    _tell(notes, f"converted {options.folder}; run folder: {options.to}")


def _export(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    refuse(unknown, ("--to", "--checkpoint", "--dtype", "--shard_size"))
    which = options.checkpoint
    if which not in ("best", "latest") and not which.isdecimal():
        raise ConfigError(f"--checkpoint: {which!r} is not best, latest or a step")
    from maskworld.conversion.to_hugging_face import export, parse_size

    notes = export(
        Path(options.run),
        Path(options.to),
        checkpoint=int(which) if which.isdecimal() else which,
        dtype=_dtype(options.dtype),
        shard_bytes=parse_size(options.shard_size),
        bar=_bar,
    )
    _tell(notes, f"exported {options.run} to {options.to}")


def _dtype(name: str) -> str | None:
    return None if name == "keep" else name


def _tell(notes: Sequence[str], last: str) -> None:
    for note in notes:
        print(note)
    print(last, flush=True)


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of bytes on a terminal; elsewhere it says nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda nbytes: progress.advance(task, nbytes)
