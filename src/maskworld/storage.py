"""Writing files so that a full disk or a kill never costs what was written before. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from maskworld.errors import StorageError

_ADVICE = {
    errno.ENOSPC: "no space left; free some or choose another run folder",
    errno.EDQUOT: "disk quota exceeded; free some space or choose another run folder",
    errno.EFBIG: "the file would be larger than the file system or `ulimit -f` allows",
    errno.EROFS: "the file system is read-only; choose another run folder",
    errno.EACCES: "permission denied; choose a folder you may write",
    errno.EPERM: "permission denied; choose a folder you may write",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EEXIST: "a file is in the way of the folder",
    errno.EISDIR: "a folder is in the way of the file",
    errno.EIO: "the device reported an input/output error",
}


def storage_error(error: BaseException, path: str | os.PathLike[str]) -> StorageError | None:
    """The StorageError that says what `error` means for `path`, or None where storage is not to blame.

    Besides OSError this reads the error texts of TensorStore, which writes checkpoints from its own threads and
    reports `[os_error_code='28']` inside a ValueError.
    """
    for cause in _causes(error):
        for code, advice in _ADVICE.items():
            if getattr(cause, "errno", None) == code or f"[os_error_code='{code}']" in str(cause):
                where = getattr(cause, "filename", None) or path
                return StorageError(f"cannot write {where}: {advice}")
    return None


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn failures of storage inside the block into a StorageError naming `path`; other errors pass."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        if translated := storage_error(error, path):
            raise translated from error
        raise


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path` by `text` at once: a reader or a kill sees the old content or the new, never a mix.

    Raises:
        StorageError: the folder cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(draft, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Wait until no other process makes `path`; the lock goes with the process, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        with suppress(OSError):  # a file system without locks: nothing can be known
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
