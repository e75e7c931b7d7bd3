"""The data benchmark: it runs on something tiny, and counts documents' tokens only."""

import json

import pytest
import tiny_run
from small_data import sentencepiece_tokenizer

from maskworld import cli
from maskworld.benchmarks import data
from maskworld.errors import ConfigError


def test_it_measures_preparing_and_both_readers(tmp_path, capsys):
    tiny_run.write_data(tmp_path / "data")
    sentencepiece_tokenizer().save(tmp_path / "tokenizer")
    words = f"--trajectories {tmp_path / 'data'} --tokenizer {tmp_path / 'tokenizer'} --row-length 256 --batches 3"
    out = tmp_path / "report.json"
    assert cli.main(["bench", "data", *words.split(), "--steps", "0", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert set(report["readers"]) == {"threads", "process"} and all(rate > 0 for rate in report["readers"].values())
    assert report["prepare"]["tokens_per_second"] > 0 and "train_step" not in report
    assert "rows of train filled" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["--batches 0", "--row-length 12", "--steps -1"])
def test_what_cannot_be_measured_is_refused(words):
    with pytest.raises(ConfigError):
        data.main(words.split())
