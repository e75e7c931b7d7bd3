"""From a folder of trajectories to a folder that training reads: tokenizer, packed rows, manifest, rejected rows.

out/tokenizer/       the vocabulary
out/train/           packed rows of train*.jsonl (also .gz, .zst)
out/validation/      packed rows of validation*.jsonl, if there are any
out/manifest.json    what it was made of and with, and what came out
out/rejected.jsonl   every input row or step that could not be used, with the reason
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maskworld.config import AugmentationConfig, DataConfig, DiffusionConfig
from maskworld.config_rules import weights_of_sources
from maskworld.data.augmentation import augmented
from maskworld.data.documents import CUTS, Losses, make_documents
from maskworld.data.mixture import Mixture, copies
from maskworld.data.packing import choose_target_blocks, pack_documents, size_of
from maskworld.data.rows import MANIFEST_FILE, RowReader, RowShape, RowWriter, sha256
from maskworld.data.schema import Trajectory
from maskworld.data.tokenizer import CONTROLS, Tokenizer, load_tokenizer, tokenizer_files
from maskworld.data.tokenizer_memory import RememberingTokenizer
from maskworld.data.tokenizer_sentencepiece import SentencePieceTokenizer
from maskworld.data.trajectories import SUFFIXES, ReadReport, read_trajectories
from maskworld.data.turns import rendered_texts
from maskworld.errors import ConfigError, DataError, StorageError
from maskworld.storage import one_at_a_time, writing

FORMAT = "maskworld.prepared/2"
REJECTED_FILE = "rejected.jsonl"
SPLITS = ("train", "validation")
_SAMPLE = 1000  # trajectories that K is chosen on


@dataclass(frozen=True)
class Prepared:
    """What training needs to know about its data."""

    tokenizer: Tokenizer
    train_rows: Path
    validation_rows: Path | None
    """None when the input has no validation split."""
    rejected: Path
    manifest: dict[str, Any]
    reused: bool
    """Whether an earlier result of the same inputs and settings was found and taken."""

    @property
    def target_blocks(self) -> int:
        """K of the rows."""
        return self.manifest["target_blocks"]

    def summary(self) -> str:
        """What was prepared, for the terminal."""
        lines = [f"tokenizer: {self.manifest['vocabulary_size']} pieces ({self.tokenizer.fingerprint[:12]})"]
        for split, facts in self.manifest["splits"].items():
            counts, share = facts["counts"], facts["efficiency"]
            lines.append(
                f"{split}: {facts['trajectories']} trajectories, {counts['steps']} steps in {counts['rows']} rows of "
                f"{self.manifest['row_length']} tokens and {self.target_blocks} target blocks "
                f"({share['tokens']:.0%} and {share['target_blocks']:.0%} used)"
            )
            lines += [f"  rejected {count}x: {reason}" for reason, count in facts["rejected"].items()]
            lines += [f"  {count} {CUTS[name]}" for name, count in facts["cut"].items() if count]
            for source, found in facts["by_source"].items():
                if found["rendered"] != found["trajectories"]:
                    lines.append(
                        f"  {source}: {found['trajectories']} trajectories, rendered {found['rendered']} times"
                    )
        return "\n".join(lines)


def split_files(folder: str | Path, split: str) -> list[Path]:
    """Files of a split, by name: `<split>*.jsonl`, `<split>*.jsonl.gz` and `<split>*.jsonl.zst`.

    Raises:
        DataError: the folder does not exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"data.trajectories: there is no folder {folder} (looked from {Path.cwd()})")
    return sorted(path for suffix in SUFFIXES for path in folder.glob(f"{split}*{suffix}"))


def prepare(
    data: DataConfig,
    diffusion: DiffusionConfig,
    out: str | Path,
    say: Callable[[str], None] = print,
    replace: bool = True,
) -> Prepared:
    """Make `out` from the trajectories, or take it as it is when it was made from the same files and settings.

    What was made from others is made anew if `replace`, and refused if not: checkpoints may depend on it.

    The result appears under its name only when it is complete; a kill leaves the old one or none. Processes that ask
    for the same folder at the same time wait for the first of them. The same input gives the same bytes.

    Raises:
        DataError: no train split, an unusable tokenizer, or not one step that can be trained on.
        ConfigError: a vocabulary too small; a weight for a source of which there is no trajectory; `out` was made from
            other files or settings, or by another version, and must not be replaced.
        StorageError: `out` cannot be written or holds something else.
    """
    out = Path(out)
    inputs, settings = _inputs(data), _settings(data, diffusion)
    found = _reusable(out, inputs, settings, say, replace)
    if found is None:
        with writing(out), one_at_a_time(out):
            found = _reusable(out, inputs, settings, lambda _: None, replace)  # another process may have been quicker
            if found is None:
                origin = {"inputs": inputs, "settings": settings}
                manifest = _replace(out, lambda draft: _build(data, diffusion, draft, origin, say))
                return _opened(out, manifest, reused=False)
    say(f"data: {out} was already prepared from the same files and settings; taking it")
    return found


def _replace(out: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Build beside `out`, then put the result in its place; returns the manifest."""
    draft, old = (out.with_name(f".{out.name}.{kind}") for kind in ("draft", "old"))
    for left in (draft, old):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        draft.mkdir()
        manifest = build(draft)
        if out.exists():
            out.rename(old)  # at once, where removing takes a while and may be cut short
        draft.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


def _inputs(data: DataConfig) -> dict[str, list[dict[str, str]]]:
    """Name and digest of all files that decide the result."""
    files = {split: split_files(data.trajectories, split) for split in SPLITS}
    if not files["train"]:
        raise DataError(f"data.trajectories: {data.trajectories} holds no train*.jsonl (or .gz, .zst)")
    if data.tokenizer:
        files["tokenizer"] = tokenizer_files(data.tokenizer)
    return {kind: [{"file": path.name, "sha256": sha256(path)} for path in paths] for kind, paths in files.items()}


def _settings(data: DataConfig, diffusion: DiffusionConfig) -> dict[str, Any]:
    settings = {
        "row_length": data.row_length,
        "target_blocks": data.target_blocks,
        "block_length": diffusion.block_length,
        "context": list(data.context),
        "source_weights": weights_of_sources(data.source_weights),
    }
    if data.augmentation != AugmentationConfig():
        settings["augmentation"] = asdict(data.augmentation)
    if not data.tokenizer:
        settings |= {"vocabulary_size": data.vocabulary_size, "phrases": data.phrases}
    if not data.target_blocks:
        settings["noisy_copies"] = _noisy_copies(diffusion)  # they bear on the choice of K
    return settings


def _noisy_copies(diffusion: DiffusionConfig) -> int:
    """Noisy blocks computed beside a row for each of its target blocks: none where targets are masked in place."""
    return 0 if diffusion.objective == "full_sequence" else diffusion.noisy_copies


def _reusable(out: Path, inputs: dict, settings: dict, say: Callable[[str], None], replace: bool) -> Prepared | None:
    """The result in `out` if it is whole and of the same making; None when there is nothing or something older."""
    if not out.exists():
        return None
    if not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST_FILE).is_file()):
        raise StorageError(f"{out}: holds something other than prepared data; choose another folder or remove it")
    try:
        manifest = json.loads((out / MANIFEST_FILE).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            if not replace:
                raise ConfigError(
                    f"{out} was prepared by another version ({manifest['format']}; this one writes {FORMAT}), and this "
                    "run has checkpoints that depend on it; go on with that version, or give another --run folder for "
                    "a new run"
                )
            say(f"data: {out} was prepared by another version; preparing again")
            return None
        for kind, mine in (("inputs", inputs), ("settings", settings)):
            changed = sorted(name for name in {*mine, *manifest[kind]} if mine.get(name) != manifest[kind].get(name))
            if changed and not replace:
                raise ConfigError(
                    f"{out} was prepared from other {kind} ({', '.join(changed)}), and this run has checkpoints that "
                    "depend on them; bring back what data.trajectories and data.tokenizer held then, or give another "
                    "--run folder for a new run"
                )
            if changed:
                say(f"data: {out} was prepared from other {kind} ({', '.join(changed)}); preparing again")
                return None
        return _opened(out, manifest, reused=True)
    except FileNotFoundError:
        return None
    except (DataError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        say(f"data: what was prepared in {out} is damaged ({error}); preparing again")
        return None


def _opened(out: Path, manifest: dict[str, Any], reused: bool) -> Prepared:
    """Prepared for `out`, after a look at every file in it."""
    tokenizer = load_tokenizer(out / "tokenizer")
    if tokenizer.fingerprint != manifest["tokenizer_hash"]:
        raise DataError(f"{out / 'tokenizer'}: is not the tokenizer that {out / MANIFEST_FILE} names")
    for split in manifest["splits"]:
        RowReader(out / split)
    validation = out / "validation" if "validation" in manifest["splits"] else None
    return Prepared(tokenizer, out / "train", validation, out / REJECTED_FILE, manifest, reused)


def _build(
    data: DataConfig,
    diffusion: DiffusionConfig,
    folder: Path,
    origin: dict[str, Any],
    say: Callable[[str], None],
) -> dict[str, Any]:
    files = {split: split_files(data.trajectories, split) for split in SPLITS}
    weights = weights_of_sources(data.source_weights)
    if data.tokenizer:
        tokenizer = load_tokenizer(data.tokenizer)
    else:
        say(f"data: training a tokenizer of up to {data.vocabulary_size} pieces on the train split")
        trajectories = _good(files["train"], weights, data.augmentation)
        texts = (text for trajectory in trajectories for text in rendered_texts(trajectory, data.context))
        tokenizer = SentencePieceTokenizer.train(texts, data.vocabulary_size, data.phrases)
    tokenizer.save(folder / "tokenizer")
    tokenizer = RememberingTokenizer(tokenizer)
    (folder / REJECTED_FILE).touch()
    length, target_blocks = diffusion.block_length, data.target_blocks
    if not target_blocks:
        sample = itertools.islice(_good(files["train"], weights, data.augmentation), _SAMPLE)
        documents = make_documents(sample, tokenizer, length, data.row_length, None, data.context)
        sizes = [size_of(document) for document in documents]
        target_blocks = choose_target_blocks(sizes, data.row_length // length, _noisy_copies(diffusion))
    shape = RowShape(data.row_length, target_blocks, length, tokenizer.pad_id)
    common = {
        "vocabulary_size": tokenizer.vocabulary_size,
        "tokenizer_hash": tokenizer.fingerprint,
        "context": list(data.context),
        **{f"{name}_id": getattr(tokenizer, f"{name}_id") for name in CONTROLS if name != "pad"},
    }
    splits = {}
    for split, paths in files.items():
        if paths:
            mixed = (Mixture(weights), data.augmentation) if split == "train" else (Mixture({}), AugmentationConfig())
            details = common | {"sources": origin["inputs"][split]}
            splits[split] = _build_split(paths, tokenizer, shape, folder, split, details, *mixed)
    manifest = {
        "format": FORMAT,
        "row_length": shape.row_length,
        "target_blocks": shape.target_blocks,
        "block_length": shape.block_length,
        "pad_id": shape.pad_id,
        **common,
        **origin,
        "splits": splits,
    }
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _build_split(
    paths: list[Path],
    tokenizer: RememberingTokenizer,
    shape: RowShape,
    folder: Path,
    split: str,
    details: dict[str, Any],
    mixture: Mixture,
    augmentation: AugmentationConfig,
) -> dict[str, Any]:
    report, losses = ReadReport(), Losses(folder / REJECTED_FILE, split)
    writer = RowWriter(folder / split, shape)

    def read(number: int) -> Iterator[Trajectory]:
        return read_trajectories(paths, losses.file if not number else Path(os.devnull), None if number else report)

    trajectories = (augmented(trajectory, augmentation, copy) for copy, trajectory in mixture.rounds(read))
    documents = make_documents(
        trajectories, tokenizer, shape.block_length, shape.row_length, shape.target_blocks, details["context"], losses
    )
    for row in pack_documents(documents, shape.row_length, shape.target_blocks):
        writer.write(row)
    facts = {
        "trajectories": report.rows,
        "by_source": mixture.to_json(),
        "rejected": dict(sorted((losses.unfit + report.reasons).items())),
        "cut": dict(losses.cut),
    }
    manifest = writer.close(details | facts)
    if split == "train" and not manifest["counts"]["rows"]:
        reasons = "; ".join(f"{count}x {reason}" for reason, count in facts["rejected"].items())
        raise DataError(
            f"{', '.join(map(str, paths))}: not one step can be trained on ({reasons or 'the files are empty'})"
        )
    return facts | {"counts": manifest["counts"], "efficiency": manifest["efficiency"]}


def _good(paths: list[Path], weights: Mapping[str, float], augmentation: AugmentationConfig) -> Iterator[Trajectory]:
    """Each trajectory that is rendered, once; bad rows are set aside when the rows are packed, once."""
    for trajectory in read_trajectories(paths, Path(os.devnull)):
        if copies(trajectory, weights):
            yield augmented(trajectory, augmentation)
