"""A build of all sources' real files: nothing vanishes, nothing leaks between splits, and each source is told apart."""

import json
from collections import Counter
from pathlib import Path

import pytest
from foreign_records import SAMPLES, corpus

from maskworld.data.build.build import build
from maskworld.data.build.config import BuildConfig
from maskworld.data.curation.directives import leak
from maskworld.data.sources.registry import SOURCES
from maskworld.data.trajectories import read_trajectories

WITHOUT_TRAJECTORIES = {"occubench"}  # tasks only


def built(paths, folder: Path, **settings):
    said: list[str] = []
    config = BuildConfig(workers=1, **settings)
    manifest = build(paths, folder, config=config, say=said.append)
    splits = {
        split: [one for path in sorted(folder.glob(f"{split}-*")) for one in read_trajectories(path)]
        for split in ("train", "validation", "test", "ood_test")
    }
    rejected = [json.loads(line) for line in (folder / "rejected.jsonl").read_text(encoding="utf-8").splitlines()]
    return manifest, splits, rejected


def check(manifest, splits, rejected):
    rows_out = sum(map(len, splits.values()))
    assert manifest["rows"]["in"] == rows_out + len(rejected) and manifest["rows"]["out"] == rows_out
    assert Counter(row["kind"] for row in rejected) == manifest["rows"]["rejected"]
    everything = [one for some in splits.values() for one in some]
    assert len({one.id for one in everything}) == len(everything)
    assert all(one.source and one.licence for one in everything)
    split_of_group: dict[str, str] = {}
    split_of_question: dict[tuple, str] = {}
    for split, some in splits.items():
        for one in some:
            assert split_of_group.setdefault(one.group or one.id, split) == split
            history: tuple = (one.initial_state,)
            for step in one.steps:
                history = (hash(history), step.action)
                assert split_of_question.setdefault(history, split) == split
                history = (hash(history), step.observation)


def test_samples_of_all_sources_in_one_build(tmp_path):
    manifest, splits, rejected = built([SAMPLES], tmp_path / "out", validation_share=0.2, test_share=0.2)
    check(manifest, splits, rejected)
    assert splits["train"] and splits["validation"] and splits["test"]
    known = {name for name in SOURCES if (SAMPLES / name).is_dir()}
    assert set(manifest["sources"]) - {"(not recognised)"} == known
    for name in known - WITHOUT_TRAJECTORIES:
        assert manifest["sources"][name]["trajectories"] or manifest["sources"][name]["rejected"], name


def test_what_is_kept_apart_shares_no_question_with_the_rest(tmp_path):
    apart = ("api_bank", "intercode/sql")
    manifest, splits, rejected = built([SAMPLES], tmp_path / "out", out_of_distribution=apart)
    check(manifest, splits, rejected)
    assert splits["ood_test"]
    for split, some in splits.items():
        for one in some:
            assert (one.source == "api_bank" or one.environment == "intercode/sql") == (split == "ood_test")


@pytest.mark.slow
def test_the_whole_corpus(tmp_path):
    (manifest_file,) = corpus(".", "MANIFEST.md")
    manifest, splits, rejected = built([manifest_file.parent], tmp_path / "out")
    check(manifest, splits, rejected)
    assert manifest["rows"]["in"] > 2000
    assert not [row for row in rejected if "the source failed" in row["reason"]]
    for some in splits.values():
        for one in some:
            for step in one.steps:
                assert leak(step.directives, step.observation, n=4) == 0, (one.id, step.directives)
