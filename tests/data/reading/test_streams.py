"""What comes out of a file, unzipped, up to its damaged place and not a byte less than can be had."""

import gzip
import random
import tracemalloc

import pyarrow
import pytest

from maskworld.data.reading import streams
from maskworld.data.reading.streams import chunks, compression

RANDOM = random.Random(0)
TEXT = b"".join(b'{"row": %d, "text": "%x"}\n' % (row, RANDOM.getrandbits(180)) for row in range(12_000))


def zstd(content):
    return pyarrow.Codec("zstd").compress(content, asbytes=True)


def read(path, content, *part):
    path.write_bytes(content)
    found = list(chunks(path, *part))
    assert not any(damage for _, damage in found[:-1])
    return b"".join(piece for piece, _ in found), found[-1][1] if found else ""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd], ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("content", [b"", b"x", TEXT], ids=["nothing", "a byte", "many chunks"])
def test_a_sound_file_comes_as_it_was(path, pack, content):
    assert read(path, pack(content)) == (content, "")


def test_the_form_is_told_from_the_first_bytes_and_not_from_the_name(tmp_path):
    wrong = tmp_path / "plain.gz"
    assert read(wrong, b"{}\n") == (b"{}\n", "") and compression(wrong) == ""
    for name, content, form in (("a", gzip.compress(b""), "gzip"), ("b", zstd(b""), "zstd"), ("c", b"PAR1", "parquet")):
        (tmp_path / name).write_bytes(content)
        assert compression(tmp_path / name) == form


def test_a_part_of_a_plain_file_is_its_bytes(path, monkeypatch):
    monkeypatch.setattr(streams, "CHUNK", 3)
    assert read(path, b"0123456789", 2, 9) == (b"2345678", "")
    assert read(path, b"0123456789", 4) == (b"456789", "")


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_several_streams_in_one_file_are_read_through(path, pack):
    assert read(path, pack(TEXT) + pack(b"") + pack(b"end")) == (TEXT + b"end", "")


def test_zeros_that_fill_a_block_behind_gzip_are_no_damage_and_other_bytes_are(path):
    assert read(path, gzip.compress(TEXT) + bytes(700)) == (TEXT, "")
    assert read(path, gzip.compress(TEXT) + bytes(700) + gzip.compress(b"end")) == (TEXT + b"end", "")
    content, damage = read(path, gzip.compress(TEXT) + b"no gzip")
    assert content == TEXT and "damaged" in damage


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9])
def test_a_cut_gzip_stream_gives_all_that_lies_before_the_cut(path, left):
    packed = gzip.compress(TEXT)
    cut = int(left * len(packed))
    content, damage = read(path, packed[:cut])
    assert damage == "the gzip stream is cut off"
    assert TEXT.startswith(content) and len(content) > len(TEXT) * left * 0.95


def test_a_gzip_stream_without_its_trailer_gives_all_and_says_so(path):
    assert read(path, gzip.compress(TEXT)[:-3]) == (TEXT, "the gzip stream is cut off")


def test_a_damaged_gzip_stream_gives_what_lies_before_the_damage(path):
    packed = gzip.compress(TEXT)
    middle = len(packed) // 2
    content, damage = read(path, packed[:middle] + random.Random(0).randbytes(middle))
    assert damage.startswith("the gzip stream is damaged")
    common = next((at for at, (a, b) in enumerate(zip(content, TEXT, strict=False)) if a != b), len(content))
    assert common > len(TEXT) * 0.45


@pytest.mark.parametrize("left", [0.25, 0.6, 0.999])
def test_a_cut_zstd_stream_gives_every_block_before_the_cut(path, left):
    packed = zstd(TEXT)
    content, damage = read(path, packed[: int(left * len(packed))])
    assert "cut off" in damage and TEXT.startswith(content)
    block = 128 << 10  # the most that one block of zstd unzips to, and one may be cut
    assert len(content) > len(TEXT) * left - 1.2 * block


def test_a_damaged_zstd_stream_gives_the_blocks_before_the_damage(path):
    packed = zstd(TEXT)
    at = int(0.7 * len(packed))
    content, damage = read(path, packed[:at] + b"\xff" * (len(packed) - at))
    assert "damaged" in damage and content[: 384 << 10] == TEXT[: 384 << 10]


def test_every_cut_of_a_small_file_is_noticed(path):
    for pack in (gzip.compress, zstd):
        packed = pack(b'{"a": 1}\n' * 50)
        for cut in range(4, len(packed)):
            content, damage = read(path, packed[:cut])
            assert damage and (b'{"a": 1}\n' * 50).startswith(content), cut


def test_a_small_file_that_unzips_to_much_is_read_in_little_memory(path):
    path.write_bytes(gzip.compress(bytes(32 << 20)))
    assert path.stat().st_size < 50_000
    tracemalloc.start()
    size = sum(len(piece) for piece, _ in chunks(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 32 << 20 and peak < 6 << 20
