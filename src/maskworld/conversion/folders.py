"""A folder that appears under its name only when all of it is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from maskworld.errors import ConversionError, StorageError
from maskworld.storage import writing


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` to write into; it takes that name when the block ends, and is removed when it fails.

    Raises:
        ConversionError: `target` is there already.
        StorageError: the folder cannot be written.
    """
    if target.exists() or target.is_symlink():
        raise ConversionError(f"{target} is there already; give another name, or move it away")
    draft = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    with writing(target):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
        except FileNotFoundError:
            raise StorageError(f"cannot write {target}: {target.parent} cannot be made") from None
        try:
            yield draft
            if target.exists():
                raise ConversionError(f"{target} has appeared meanwhile; nothing was written")
            os.rename(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def check_free_space(folder: Path, needed: int) -> None:
    """Refuse to begin what cannot fit.

    Raises:
        StorageError: fewer than `needed` bytes are free.
    """
    with writing(folder):
        free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"cannot write {folder}: no space left for {needed / 1e6:,.1f} MB ({free / 1e6:,.1f} MB are free); "
            "free some or choose another folder"
        )


def copy_files(source: Path, target: Path, patterns: tuple[str, ...]) -> list[str]:
    """Copy those files of `source` that are called so (`*.py` and the like too); returns their names."""
    there = [path.name for pattern in patterns for path in sorted(source.glob(pattern)) if path.is_file()]
    for name in there:
        shutil.copyfile(source / name, target / name)
    return there
