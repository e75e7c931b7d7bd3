"""Damaged safetensors: whatever the bytes, a named refusal or the right data, and no memory for what is not there."""

import json
import resource
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from maskworld.conversion.safetensors_file import read_folder, read_header
from maskworld.conversion.safetensors_writer import Outline, write_folder
from maskworld.errors import UserError

SHAPES = {"a.weight": (3, 4), "b.weight": (5,), "c.weight": (2, 1, 3), "d.scale": ()}
ARRAYS = {name: np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}
MOST_MEMORY = 2_000_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    outlines = [Outline(name, array.dtype, array.shape) for name, array in ARRAYS.items()]
    write_folder(folder, outlines, iter(ARRAYS.values()), 10**6)
    return (folder / "model.safetensors").read_bytes()


def body_of(content):
    return content[8 + int.from_bytes(content[:8], "little") :]


def check(folder, content):
    """Read all of `content`: a UserError that names the file, or tensors that are the bytes of the body in order."""
    file = folder / "model.safetensors"
    file.write_bytes(content)
    tracemalloc.start()
    try:
        entries = read_header(file)
        found = [entry.read() for entry in entries.values()]
        rows = [entry.rows(0, entry.shape[0]) for entry in entries.values() if entry.shape]
    except UserError as error:
        assert str(file) in str(error)
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_MEMORY
    assert b"".join(one.tobytes() for one in found) == body_of(content)
    for one, flat in zip((one for one in found if one.ndim), rows, strict=True):
        assert flat.tobytes() == one.tobytes()
    return {name: one for name, one in zip(entries, found, strict=True)}


def test_an_undamaged_file_is_read(whole, tmp_path):
    found = check(tmp_path, whole)
    assert found.keys() == ARRAYS.keys()
    assert all((found[name] == array).all() and found[name].shape == array.shape for name, array in ARRAYS.items())


ONCE = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ONCE
@given(st.data())
def test_changed_bytes_are_refused_or_change_nothing_else(whole, tmp_path, data):
    content = bytearray(whole)
    positions = st.integers(0, len(whole) - len(body_of(whole)) - 1)
    for at, byte in data.draw(st.lists(st.tuples(positions, st.integers(0, 255)), min_size=1, max_size=4)):
        content[at] = byte
    check(tmp_path, bytes(content))


@ONCE
@given(st.data())
def test_cut_doubled_and_inserted_bytes_are_refused(whole, tmp_path, data):
    cut = data.draw(st.integers(0, len(whole)))
    more = data.draw(st.binary(max_size=20))
    rest = data.draw(st.integers(cut, len(whole)))
    content = whole[:cut] + more + whole[rest:]
    found = check(tmp_path, content)
    if len(content) != len(whole) and content[: len(whole) - len(body_of(whole))] == whole[: -len(body_of(whole))]:
        assert found is None  # the header is whole, the body is not as long as it says


NUMBERS = st.sampled_from([0, 1, 3, 4, 48, 96, -1, 2**31, 2**63, 2**64, 10**40, 1.0, 1e300, True, None, "4", [], {}])


@ONCE
@given(
    name=st.sampled_from(sorted(SHAPES)),
    key=st.sampled_from(["dtype", "shape", "data_offsets"]),
    value=st.one_of(
        st.lists(NUMBERS, max_size=4),
        NUMBERS,
        st.sampled_from(["F32", "F64", "F8_E4M3", "U8", "BOOL", ["F32"]]),
    ),
)
@example(name="a.weight", key="shape", value=[0, 10**40])
@example(name="a.weight", key="shape", value=[2**62, 2**62, 0])
@example(name="b.weight", key="data_offsets", value=[48, 48])
def test_entries_that_contradict_the_file_are_refused(whole, tmp_path, name, key, value):
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    before = dict(header[name])
    header[name][key] = value
    text = json.dumps(header).encode()
    found = check(tmp_path, struct.pack("<Q", len(text)) + text + body_of(whole))
    if found is not None and header[name] == before:
        assert (found[name] == ARRAYS[name]).all()


@pytest.mark.parametrize("shape", [[0, 10**40], [2**62, 2**62, 0], [0, 2**57], [0, 3]])
def test_an_empty_tensor_may_have_any_shape_that_an_array_can_have(whole, tmp_path, shape):
    text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    found = check(tmp_path, struct.pack("<Q", len(text)) + text)
    assert (found is not None) == (shape == [0, 3])


@ONCE
@given(st.binary(max_size=200))
@example(struct.pack("<Q", 2**63))
@example(struct.pack("<Q", 2) + b"{}")
@example(struct.pack("<Q", 100_000) + b"[" * 100_000)
@example(struct.pack("<Q", 30) + b'{"a":' * 6)
@example(struct.pack("<Q", 12) + b'{"a": 1e999}')
@example(struct.pack("<Q", 6000) + b'{"a": ' + b"9" * 5993 + b"}")
def test_any_bytes_are_refused_or_hold_no_tensor(tmp_path, content):
    assert not check(tmp_path, content)


@ONCE
@given(st.binary(max_size=120))
@example(b'{"weight_map": {"a": "model.safetensors"}}')
@example(b'{"weight_map": {"a": 3}}')
@example(b'{"weight_map": {"a": ""}}')
@example(b'{"weight_map": {"a": ".."}}')
@example(b'{"weight_map": {"a": "\\u0000"}}')
@example(b'{"weight_map": "ab"}')
@example(b'{"weight_map": [[[], "b"]]}')
@example(b"[" * 100_000)
def test_any_index_is_refused(tmp_path, content):
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(content)
    with pytest.raises(UserError, match=r"model.safetensors.index.json"):
        read_folder(tmp_path)


def test_a_header_that_asks_for_more_than_there_is_takes_no_memory(tmp_path):
    """A sparse file of terabytes with a header to match: reading what it says of itself costs nothing."""
    size = 1 << 40
    text = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    file = tmp_path / "model.safetensors"
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        try:
            out.truncate(8 + len(text) + size)
        except OSError:
            pytest.skip("this file system has no sparse files of a terabyte")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_header(file)["a"].shape == (size,)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB
