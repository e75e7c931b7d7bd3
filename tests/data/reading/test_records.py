"""Every good record of a hostile file comes out, every bad one is named once, and memory stays bounded."""

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.reading import streams
from maskworld.data.reading.documents import end_of_value
from maskworld.data.reading.lines import is_json_lines
from maskworld.data.reading.records import Damage, Part, Record, read_records

GOOD = [{"id": number, "steps": [{"a": "x", "o": '{"é": ['}, {"a": "y", "o": ""}]} for number in range(5)]
LINES = [json.dumps(one).encode() for one in GOOD]
UNICODE = partial(json.dumps, ensure_ascii=False)
DEEP = '{"id": 9, "x": ' + "[" * 10_000 + "]" * 10_000 + "}"
BROKEN = {
    "a member twice": b'{"id": 9, "id": 10}',
    "no UTF-8": b'{"id": 9, "x": "\xff"}',
    "half of a character": b'{"id": 9, "x": "\xf0\x9f"}',
    "10,000 levels": DEEP.encode(),
    "a number of 5,000 digits": b'{"id": ' + b"9" * 5000 + b"}",
    "no value": b'{"id": }',
    "a string without an end": b'{"id": "9}',
    "a quote too many": b'{"id": 9, "x": "said "no"}',
    "a quote too few": b'{id": 9, "x": "}", "y": 1}',
    "a bracket too few": b'{"id": 9, "x": [1, 2}',
    "a bracket of another kind": b'{"id": 9, "x": [1, 2}]',
    "only its beginning": b'{"id": 9, "steps": [{"a": "x", "o": "y',
    "a bare word": b"nothing",
    "a line break in a string": b'{"id": 9, "x": "a\tb"}',
}


def is_record(value):
    return isinstance(value, dict) and "id" in value


def read(path, content, largest=1 << 20):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = list(read_records(Part(path), is_record, largest))
    assert all(after.index > before.index for before, after in pairwise(found))
    return found


def values(found):
    return [one.value for one in found if isinstance(one, Record)]


def reasons(found):
    return [one.reason for one in found if isinstance(one, Damage)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.json"


FORMS = {
    "lines": lambda rows, dump: "\n".join(map(dump, rows)) + "\n",
    "lines without a last end": lambda rows, dump: "\n".join(map(dump, rows)),
    "lines ended by CRLF": lambda rows, dump: "\r\n".join(map(dump, rows)) + "\r\n",
    "lines ended by CR": lambda rows, dump: "\r".join(map(dump, rows)) + "\r",
    "lines with blank ones": lambda rows, dump: "\n\n  \n".join(map(dump, rows)) + "\n\n",
    "lines behind a mark": lambda rows, dump: "\ufeff" + "\n".join(map(dump, rows)),
    "one behind another": lambda rows, dump: "".join(map(dump, rows)),
    "documents over several lines": lambda rows, dump: "\n".join(dump(row, indent=2) for row in rows),
    "an array on one line": lambda rows, dump: dump(rows),
    "an array over several lines": lambda rows, dump: dump(rows, indent=1),
    "an array with an entry a line": lambda rows, dump: "[\n" + ",\n".join(map(dump, rows)) + "\n]\n",
    "an array behind a mark": lambda rows, dump: "\ufeff" + dump(rows),
    "an array and objects": lambda rows, dump: dump(rows[:2], indent=1) + "".join(map(dump, rows[2:])),
    "objects between commas": lambda rows, dump: ",\n".join(map(dump, rows)),
}


@pytest.mark.parametrize("name", ["file.json", "file.jsonl", "file"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_records_are_found_in_whatever_form_and_under_whatever_name(tmp_path, form, name):
    content = form(GOOD, UNICODE)
    assert values(read(tmp_path / name, content)) == GOOD
    assert values(read(tmp_path / name, gzip.compress(content.encode()))) == GOOD


texts = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(['"', "\\", "{", "]}", ",\n", '\\"', "😀"])
members = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
rows = st.lists(st.fixed_dictionaries({"id": members, "x": members}), min_size=2, max_size=9)


@settings(max_examples=25, deadline=None)
@given(
    rows,
    st.sampled_from(sorted(FORMS)),
    st.sampled_from([1, 2, 5, 33, 1 << 18]),
    st.sampled_from([json.dumps, UNICODE]),
)
def test_where_a_chunk_ends_changes_nothing(tmp_path_factory, rows, form, size, dump):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK", size)
        assert values(read(tmp_path_factory.getbasetemp() / "chunks.json", FORMS[form](rows, dump))) == rows


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_is_named_and_costs_no_other(tmp_path, broken, place):
    lines = [*LINES[:place], broken, *LINES[place:]]
    for name in ("file.json", "file.jsonl"):
        found = read(tmp_path / name, b"\n".join(lines))
        assert values(found) == GOOD
        assert [one.index for one in found if isinstance(one, Damage)] == [place]


@pytest.mark.parametrize("between", [b", ", b",\n", b"\n,"], ids=["one line", "an entry a line", "leading commas"])
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_entry_of_an_array_is_named_and_costs_no_other(path, broken, between):
    found = read(path, b"[" + between.join([*LINES[:2], broken, *LINES[2:]]) + b"]")
    assert values(found) == GOOD
    assert [one.index for one in found if isinstance(one, Damage)] == [2]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_one_character_more_or_less_in_an_entry_costs_no_other(tmp_path_factory, data):
    dump = data.draw(st.sampled_from([json.dumps, partial(json.dumps, indent=2)]))
    rows = [dump(one) for one in GOOD]
    place = data.draw(st.integers(1, len(rows) - 1))
    at = data.draw(st.integers(1, len(rows[place]) - 1))
    change = data.draw(st.sampled_from(["", *'[]{}",:x']))
    rows[place] = rows[place][:at] + change + rows[place][at + (not change) :]
    between = data.draw(st.sampled_from([", ", ",\n"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK", data.draw(st.sampled_from([16, 1 << 18])))
        found = values(read(tmp_path_factory.getbasetemp() / "changed.json", f"[{between.join(rows)}]"))
    assert [one for one in GOOD if one != GOOD[place]] == [one for one in found if one in GOOD and one != GOOD[place]]


def test_a_broken_first_entry_does_not_make_the_array_one_record(path):
    for first in ("null", "5", '"text"', '{"other": 1}', "{'id': 1}", '{"id": 1, "id": 2}'):
        assert [one for one in values(read(path, f"[{first}, {LINES[0].decode()}]")) if is_record(one)] == GOOD[:1]


def test_an_array_of_other_things_is_one_record(path):
    chat = [{"role": "user", "content": "x" * 50}] * 40
    assert values(read(path, json.dumps(chat))) == [chat]
    assert values(read(path, json.dumps(chat, indent=1) + json.dumps(chat))) == [chat, chat]
    assert values(read(path, "[[1], [2]]")) == [[[1], [2]]]


@pytest.mark.parametrize("end", range(1, 60, 7))
def test_an_array_that_is_cut_off_gives_its_whole_entries_and_one_damage(path, end):
    content = json.dumps(GOOD, indent=1)
    cut = content[:-end]
    whole = sum(cut.count(json.dumps(one, indent=1).replace("\n", "\n ")) for one in GOOD)
    found = read(path, cut)
    assert values(found) == GOOD[:whole] and len(reasons(found)) == 1 and "cut off" in reasons(found)[0]


def test_what_stands_behind_an_array_does_not_vanish(path):
    found = read(path, json.dumps(GOOD[:2]) + "\nsome trash ]}\n" + json.dumps(GOOD[2]) + " 5")
    assert values(found) == [*GOOD[:3], 5] and len(reasons(found)) == 1


def test_commas_too_many_and_too_few_cost_nothing(path):
    one, two, three = (line.decode() for line in LINES[:3])
    assert values(read(path, f"[{one} {two},,{three},]")) == GOOD[:3]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"hello", "neither JSON"),
        (b"5\n6\n", "neither JSON"),
        (b'"text"', "neither JSON"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "neither JSON"),
        (b"# A title\n\n[link](x)\n[link](y)\n", "neither JSON"),
        (json.dumps(GOOD).encode("utf-16"), "UTF-16"),
        (b"\n".join(LINES).decode().encode("utf-16-be"), "neither JSON"),
        (b'{"id": 1', "cut off"),
        (b'{"id": tru', "cut off"),
        (b"[" * 10_000, "nested too deeply"),
        (DEEP.encode(), "nested too deeply"),
        (b"[12", "cut off"),
        (b'{"id": 1, "id": 2}', "occurs twice"),
    ],
)
def test_a_file_without_a_record_is_one_damage_that_says_why(path, content, reason):
    (one,) = read(path, content)
    assert isinstance(one, Damage) and reason in one.reason and one.index == 0
    one.excerpt.encode("utf-8")


@pytest.mark.parametrize("content", [b"", b" \n\r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"[]", b" [ ]\n"])
def test_a_file_without_anything_gives_nothing(path, content):
    assert read(path, content) == []


def test_numbers_that_json_has_not_are_read_and_left_to_the_sources(path):
    content = b'{"id": NaN, "x": [Infinity, -Infinity]}'
    for text in (content, b"[" + content + b"]", content + b"\n" + content):
        assert repr(values(read(path, text))[0]) == "{'id': nan, 'x': [inf, -inf]}"


def test_escaped_halves_of_a_character_are_no_damage_and_raw_ones_are(path):
    assert values(read(path, '[{"id": "\\ud800"}]')) == [{"id": "\ud800"}]
    assert reasons(read(path, b'[{"id": "\xed\xa0\x80"}, {"id": "\xc3\xa9"}]')) == [
        "no UTF-8 at character 8 of the value"
    ]


@pytest.mark.parametrize("keep", [1, 40, 41, 42, 100])
def test_a_cut_stream_keeps_a_last_line_that_is_whole(tmp_path, keep):
    lines = b"\n".join(LINES)
    where = lines.index(LINES[3]) + len(LINES[3])  # no newline follows within what is kept
    packed = gzip.compress(lines[:where], mtime=0)
    found = read(tmp_path / "a.jsonl.gz", packed[: -min(keep, 8)])
    assert values(found) == GOOD[:4] and reasons(found) == ["the gzip stream is cut off"]
    found = read(tmp_path / "b.jsonl.gz", gzip.compress(lines[: where - 1], mtime=0)[:-4])
    assert values(found) == GOOD[:3] and reasons(found) == ["the gzip stream is cut off"]


def test_a_cut_stream_of_an_array_keeps_its_whole_entries(path):
    packed = gzip.compress(json.dumps(GOOD * 2000).encode())
    found = read(path, packed[: len(packed) // 2])
    assert len(values(found)) > 3000 and reasons(found) == ["the gzip stream is cut off"]


def test_parts_of_a_file_number_their_lines_through(path):
    path.write_bytes(b"\n".join(LINES) + b"\n")
    cut = len(LINES[0]) + len(LINES[1]) + 2
    first = list(read_records(Part(path, 0, cut), is_record))
    second = list(read_records(Part(path, cut, None, 2), is_record))
    assert [*first, *second] == [Record(index, value) for index, value in enumerate(GOOD)]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.json", b'{"id": 1}\n{"id": 2}', True),
        ("a.json", b'{"id": 1}\nbroken', True),
        ("a.json", b'broken\n{"id": 1}\n{"id": 2}', True),
        ("a.json", b'{"id": 1}\n', False),
        ("a.json", b'{\n"id": 1\n}\n{\n"id": 2\n}', False),
        ("a.json", b'[\n{"id": 1},\n{"id": 2}\n]', False),
        ("a.jsonl", b'[\n{"id": 1},\n{"id": 2}\n]', False),
        ("a.jsonl", b"broken\nbroken", True),
        ("a.txt", b"[section]\n[section]\n", False),
        ("a.jsonl", "[]\n[]".encode("utf-16"), False),
    ],
)
def test_the_content_decides_on_lines_before_the_name(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert is_json_lines(tmp_path / name) is expected


@settings(max_examples=40)
@given(members, texts, st.sampled_from(["", " ", ", 1", "]", "}"]))
def test_brackets_and_quotes_alone_tell_where_a_container_ends(inner, key, after):
    for value in ([inner], {key: inner}):
        content = json.dumps(value)
        assert end_of_value("  " + content + after, 2) == len(content) + 2
        assert end_of_value(content[:-1], 0) is None


def peak_of(action):
    tracemalloc.start()
    try:
        return action(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def long_line(path, size):
    """A file with one very long line between good ones."""
    with open(path, "wb") as file:
        file.write(LINES[0] + b'\n{"id": 1, "x": "')
        for _ in range(size >> 20):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n' + LINES[1] + b"\n")


@pytest.mark.parametrize("name", ["lines.jsonl", "lines.json"])
def test_a_line_that_is_too_long_is_passed_over_in_bounded_memory(tmp_path, name):
    long_line(tmp_path / name, 30 << 20)
    found, peak = peak_of(lambda: list(read_records(Part(tmp_path / name), is_record, 1 << 20)))
    assert values(found) == GOOD[:2]
    assert reasons(found) == ["is longer than 1 MiB; --longest_record N allows more"]
    assert len(found[1].excerpt) == 2000 and peak < 6 << 20


def test_an_entry_that_is_too_long_is_passed_over_in_bounded_memory(path):
    long = '{"id": 1, "x": "' + "x" * (24 << 20) + '"}'
    path.write_text(f"[{LINES[0].decode()}, {long}, {LINES[1].decode()}]")
    found, peak = peak_of(lambda: list(read_records(Part(path), is_record, 1 << 20)))
    assert values(found) == GOOD[:2] and peak < 12 << 20
    assert reasons(found) == ["is longer than 1 MiB; --longest_record N allows more"]
    path.write_text(long)
    (one,), peak = peak_of(lambda: list(read_records(Part(path), is_record, 1 << 20)))
    assert one.reason.startswith("is longer than 1 MiB") and peak < 12 << 20


def test_a_long_broken_entry_takes_little_more_memory_than_its_text(path):
    path.write_text('[{"id": 1, "x": "' + r"a\n" * (1 << 18) + '", }, {"id": 2}]')
    found, peak = peak_of(lambda: list(read_records(Part(path), is_record, 8 << 20)))
    assert values(found) == [{"id": 2}] and len(reasons(found)) == 1 and peak < 8 << 20


@pytest.mark.parametrize("form", ["an array on one line", "an array over several lines", "lines ended by CR", "lines"])
def test_neither_the_number_of_records_nor_the_file_bears_on_memory(path, form):
    rows = [{"id": number, "x": "x" * 2000} for number in range(8000)]
    path.write_text(FORMS[form](rows, json.dumps))
    records = read_records(Part(path), is_record, 1 << 20)
    number, peak = peak_of(lambda: sum(isinstance(one, Record) for one in records))
    assert number == 8000 and peak < 4 << 20 < path.stat().st_size / 3


MEASURED = """
import resource, sys
from pathlib import Path
from maskworld.data.reading.records import Part, Record, read_records
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = [isinstance(one, Record) for one in read_records(Part(Path(sys.argv[1])), lambda value: True)]
print(found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lines.jsonl", "lines.json"])
def test_200_megabytes_on_one_line_take_no_more_than_the_longest_record(tmp_path, name):
    long_line(tmp_path / name, 200 << 20)
    words = [sys.executable, "-c", MEASURED, str(tmp_path / name)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment, check=True)
    shown, _, kibibytes = done.stdout.rpartition(" ")
    assert shown == "[True, False, True]" and int(kibibytes) < 200 << 10
