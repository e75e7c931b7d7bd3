import json
import pickle
import resource
import subprocess
import sys

import numpy as np
import pytest
from small_data import documents_of, rooms, sentencepiece_tokenizer, write_packed, write_rows

from maskworld.data.rows import RowReader, RowShape, decode_row, encode_row, stack
from maskworld.errors import DataError

SHAPE = RowShape(row_length=128, target_blocks=10, block_length=8, pad_id=0)


def test_a_row_comes_back_as_the_arrays_of_the_contract():
    documents = documents_of(rooms(3, steps=1), SHAPE)
    row = decode_row(encode_row(documents), SHAPE)
    used = sum(map(len, documents))
    assert {name: (array.dtype.name, array.shape) for name, array in row.items()} == {
        "tokens": ("int32", (128,)),
        "document_ids": ("int32", (128,)),
        "positions": ("int32", (128,)),
        "targets": ("bool", (128,)),
        "target_blocks": ("int32", (10,)),
    }
    np.testing.assert_array_equal(row["tokens"][:used], np.concatenate([one.tokens for one in documents]))
    np.testing.assert_array_equal(row["targets"][:used], np.concatenate([one.targets for one in documents]))
    np.testing.assert_array_equal(row["positions"][:used], np.concatenate([np.arange(len(one)) for one in documents]))
    np.testing.assert_array_equal(row["document_ids"][:used], np.repeat([1, 2, 3], [len(one) for one in documents]))
    for name in ("tokens", "document_ids", "positions", "targets"):
        assert not row[name][used:].any()
    holding = np.flatnonzero(row["targets"].reshape(-1, 8).any(axis=1))
    np.testing.assert_array_equal(row["target_blocks"], [*holding, *[-1] * (10 - len(holding))])


def test_token_ids_beyond_sixteen_bits_survive():
    (document,) = documents_of(rooms(1), SHAPE)
    large = document.tokens + 150_000
    row = decode_row(encode_row([type(document)("t", 8, large, document.targets, document.steps)]), SHAPE)
    np.testing.assert_array_equal(row["tokens"][: len(large)], large)


def test_an_empty_row_has_no_document_and_no_target():
    empty = SHAPE.empty()
    batch = stack([], 2, SHAPE)
    assert not empty["targets"].any() and not empty["document_ids"].any() and (empty["target_blocks"] == -1).all()
    assert batch["tokens"].shape == (2, 128)


def test_rows_over_several_files_are_read_by_index(tmp_path):
    shape = write_rows(tmp_path / "rows", 25, rows_per_shard=10)
    reader = RowReader(tmp_path / "rows")
    assert len(reader) == 25 and len(list((tmp_path / "rows").glob("*.array_record"))) == 3
    tokenizer = sentencepiece_tokenizer()
    order = [24, 0, 10, 9, 19, 20]
    texts = [tokenizer.decode(row["tokens"]) for row in reader.read(order)]
    assert texts == [f"look 0mug {index}" for index in order]
    assert reader.shape == shape
    assert len(pickle.loads(pickle.dumps(reader))) == 25
    with pytest.raises(IndexError):
        reader.read([25])


def test_the_manifest_counts_what_was_written(tmp_path):
    documents = write_packed(tmp_path / "rows", rooms(20), SHAPE)
    manifest = json.loads((tmp_path / "rows" / "manifest.json").read_text())
    rows = RowReader(tmp_path / "rows").read(range(manifest["counts"]["rows"]))
    assert manifest["counts"] == {
        "rows": len(rows),
        "documents": len(documents),
        "tokens": sum(map(len, documents)),
        "targets": sum(int(row["targets"].sum()) for row in rows),
        "target_blocks": sum(int((row["target_blocks"] >= 0).sum()) for row in rows),
        "steps": sum(len(one.steps) for one in rooms(20)),
    }
    assert manifest["efficiency"]["tokens"] == pytest.approx(sum(map(len, documents)) / (len(rows) * 128), abs=1e-4)


def read_everything(folder):
    reader = RowReader(folder)
    return reader.read(range(len(reader)))


def only_file(folder):
    (path,) = folder.glob("*.array_record")
    return path


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100, 5_000, 65_536, 65_600, -65_536, -100, -1])
def test_a_truncated_file_is_refused_by_name(tmp_path, size):
    write_rows(tmp_path / "rows", 400)
    path = only_file(tmp_path / "rows")
    content = path.read_bytes()
    path.write_bytes(content[:size])
    with pytest.raises(DataError, match=f"{path.name}: truncated"):
        read_everything(tmp_path / "rows")
    # Even where the manifest agrees on the size, the file's own structure gives the damage away.
    manifest = json.loads((tmp_path / "rows" / "manifest.json").read_text())
    manifest["files"][0]["bytes"] = path.stat().st_size
    (tmp_path / "rows" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=path.name):
        read_everything(tmp_path / "rows")


def test_a_flipped_byte_is_refused_by_name_or_harmless(tmp_path):
    write_rows(tmp_path / "rows", 100)
    whole = [row["tokens"].tobytes() for row in read_everything(tmp_path / "rows")]
    path = only_file(tmp_path / "rows")
    content = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for place in [*range(0, 200, 7), *random.integers(0, len(content), 150)]:
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            rows = read_everything(tmp_path / "rows")
        except DataError as error:
            assert path.name in str(error)
            refused += 1
        else:
            assert [row["tokens"].tobytes() for row in rows] == whole
    assert refused > 20


def test_a_record_of_the_wrong_content_is_refused():
    record = encode_row(documents_of(rooms(1), SHAPE))
    for damaged in (b"", record[:10], record[:-1], record + b"x", b"\0" * 100):
        with pytest.raises(DataError):
            decode_row(damaged, SHAPE)
    with pytest.raises(DataError, match="the manifest allows"):
        decode_row(encode_row(documents_of(rooms(3), SHAPE) * 4), SHAPE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="maskworld.rows/0"), "field 'format' is 'maskworld.rows/0'"),
        (lambda m: m.pop("row_length"), "field 'row_length' is missing"),
        (lambda m: m.update(target_blocks="8"), "field 'target_blocks'"),
        (lambda m: m.update(files="none"), "field 'files'"),
        (lambda m: m["files"][0].pop("rows"), "field 'files'"),
        (lambda m: m["files"][0].update(rows=21), "20 rows, the manifest says 21"),
        (lambda m: m["files"][0].update(bytes=7), "longer than written"),
        (lambda m: m["files"][0].update(file="gone.array_record"), "gone.array_record: missing"),
        (lambda m: m.update(target_blocks=0), "the manifest allows"),
        (lambda m: m.update(row_length=8), "the manifest allows"),
    ],
)
def test_a_manifest_that_does_not_match_is_refused_by_field(tmp_path, change, message):
    write_rows(tmp_path / "rows", 20)
    path = tmp_path / "rows" / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=message):
        read_everything(tmp_path / "rows")


def test_a_folder_without_a_readable_manifest_is_refused(tmp_path):
    with pytest.raises(DataError, match="manifest.json: missing"):
        RowReader(tmp_path / "nothing")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="manifest.json: cannot be read"):
        RowReader(tmp_path)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from small_data import write_rows
from maskworld.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    write_rows(Path(sys.argv[1]), 3000)
except StorageError as error:
    print("refused:", error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit on file sizes here")
def test_a_disk_that_is_full_is_reported_as_such(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "rows")],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert "refused: " in result.stdout, result.stdout + result.stderr
    assert not (tmp_path / "rows" / "manifest.json").exists()
