"""Small dumps of web shop sessions for tests of the build, good and hostile, and what is in a folder."""

import gzip
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet


def session(number: int, pages: int = 2, **members: Any) -> dict[str, Any]:
    """A record of the `webshop` source, one trajectory named `number` that shares no question with any other."""
    said = [{"from": "human", "value": f"WebShop [SEP] Instruction: [SEP] buy thing {number} [SEP] Search"}]
    for page in range(pages):
        said.append({"from": "gpt", "value": f"Action: search[thing {number} page {page}]"})
        said.append({"from": "human", "value": f"Observation: page {page} of things {number}"})
    return {"item_id": f"webshop_{number}", "conversations": said} | members


def sessions(first: int, count: int) -> list[dict[str, Any]]:
    return [session(number) for number in range(first, first + count)]


def lines(records: list[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under the folder and its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def start(words: list[str], script: str = "", folder: Path | None = None, **variables: str) -> subprocess.Popen:
    """`maskworld WORDS` in a process of its own, after the lines of `script`, which its workers run too."""
    path = (folder or Path(words[-1])).parent / f"driver{abs(hash(script))}.py"
    path.write_text(
        f"{script}\nimport sys\nif __name__ == '__main__':\n    from maskworld.cli import main\n    sys.exit(main())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    return subprocess.Popen(
        [sys.executable, str(path), *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


DEEP = "[" * 10_000 + "]" * 10_000


def chat(content):
    return {"item_id": "webshop_x", "conversations": [{"from": "human", "value": content}]}


class Hostile:
    """Files with good and bad rows."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.expected: dict[str, tuple[list[int], list[str]]] = {}
        """Per file as reports name it: the sessions that are good, and what is said of the other rows, in order."""
        self._count = 0

    def some(self, number: int) -> list[int]:
        """Numbers of sessions that occur nowhere else."""
        self._count += number
        return list(range(self._count - number, self._count))

    def file(self, name: str, content: bytes | str, good: list[int], *reasons: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.expected[name] = (good, list(reasons))


def records(numbers: list[int]) -> list[dict[str, Any]]:
    return [session(number) for number in numbers]


def hostile_files(folder: Path) -> dict[str, tuple[list[int], list[str]]]:
    """Writes them all; see `Hostile.expected`."""
    dump = Hostile(folder)
    for write in (_zipped, _broken_lines, _forms_of_json, _no_sessions, _parquet, _names_and_links):
        write(dump)
    return dump.expected


def _zipped(dump: Hostile) -> None:
    good = dump.some(40)
    packed = gzip.compress(lines(records(good)))
    whole_lines = zlib.decompressobj(31).decompress(packed[: len(packed) // 2]).count(b"\n")
    dump.file("cut.jsonl.gz", packed[: len(packed) // 2], good[:whole_lines], "the gzip stream is cut off")
    good = dump.some(30)
    packed = gzip.compress(lines(records(good[:10]))) + gzip.compress(lines(records(good[10:])))
    dump.file("twice.gz", packed + bytes(9), good)
    good = dump.some(3)
    packed = pyarrow.Codec("zstd").compress(lines(records(good)), asbytes=True)
    dump.file("sound.zst", packed, good)
    dump.file("cut.zst", packed[:-4], [], "the zstd stream is damaged or cut off")
    good = dump.some(3)
    blank = (b" " * (1 << 20) + b"\n") * 16
    dump.file("bomb.jsonl.gz", gzip.compress(lines(records(good[:2])) + blank + lines(records(good[2:]))), good)


def _broken_lines(dump: Hostile) -> None:
    good = dump.some(2)
    long = b'{"item_id": "webshop_long", "conversations": "' + b"x" * (3 << 20) + b'"}\n'
    content = lines(records(good[:1])) + long + lines(records(good[1:]))
    dump.file("long.jsonl", content, good, "is longer than 2 MiB")
    good = dump.some(2)
    unused = [session(good[0], unused=float("nan")), session(good[1], unused=[float("inf")])]
    content = lines([*unused, session(-1, reward=float("nan"))])
    dump.file("numbers.json", content, good, "must be finite, is nan")
    good = dump.some(3)
    deep, twice, no_text = BROKEN[:3]
    content = b"\n".join([*lines(records(good)).splitlines()[:2], deep, twice, no_text, b"", lines(records(good[2:]))])
    reasons = ("nested too deeply", "occurs twice in one object", "no UTF-8 at byte 13 (0xff)")
    dump.file("levels.jsonl", content, good, *reasons)


BROKEN = (
    b'{"item_id": "webshop", "conversations": [], "x": %s}' % DEEP.encode(),
    b'{"item_id": 1, "item_id": 2}',
    b'{"item_id": "\xff"}',
    b'{"item_id": tru}',
)


def _forms_of_json(dump: Hostile) -> None:
    good = dump.some(4)
    entries = lines(records(good)).splitlines()
    content = b"[" + b", ".join(entry for pair in zip(entries, BROKEN, strict=True) for entry in pair) + b"]"
    reasons = ("nested too deeply", "occurs twice in one object", "no UTF-8 at character 13 of the value")
    dump.file("entries.json", content, good, *reasons, "no JSON: Expecting value at character 12")
    good = dump.some(2)
    dump.file("cut.json", json.dumps(records(good), indent=1)[:-5], good[:1], "cut off")
    good = dump.some(1)
    dump.file("mark.json", "\ufeff" + json.dumps(records(good)), good)
    good = dump.some(2)
    dump.file("pretty.json", "\n".join(json.dumps(record, indent=2) for record in records(good)), good)
    for name, end in (("cr", b"\r"), ("crlf", b"\r\n")):
        good = dump.some(2)
        dump.file(f"ends/{name}.json", lines(records(good)).replace(b"\n", end), good)


def _no_sessions(dump: Hostile) -> None:
    neither = "holds neither JSON, JSON Lines nor Parquet"
    silent = {"item_id": "webshop_x", "conversations": [{"from": "human", "value": "WebShop"}]}
    half = {"item_id": "webshop_x", "conversations": [{"\ud800": "human", "value": "WebShop \ud800"}]}
    dump.file("other/wide.json", json.dumps(records([0])).encode("utf-16"), [], "is UTF-16, not UTF-8")
    dump.file("other/number.json", "5", [], neither)
    dump.file("other/image.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), [], neither)
    dump.file("other/README.md", "# Sessions\n\nof shops\n", [], neither)
    dump.file("other/nothing", b"", [])
    dump.file("other/blank.jsonl", b"\n\n \n", [])
    dump.file("other/unknown.json", json.dumps({"a": 1}), [], "no source recognises the record; --source NAME")
    dump.file("other/silent.json", json.dumps(silent), [], "holds no transition")
    dump.file("other/half.json", json.dumps(half), [], "is missing")


def _parquet(dump: Hostile) -> None:
    good = dump.some(25)
    columns = {name: [record[name] for record in records(good)] for name in ("item_id", "conversations")}
    table = pyarrow.table(columns | {"untyped": pyarrow.nulls(25), "json": [DEEP] * 25})
    for name, rows in (("rows", table), ("no_rows", table.slice(0, 0))):
        pyarrow.parquet.write_table(rows, dump.folder / f"{name}.parquet", row_group_size=7)
        dump.expected[f"{name}.parquet"] = (good[: len(rows)], [])
    content = (dump.folder / "rows.parquet").read_bytes()
    dump.file("cut.parquet", content[: len(content) // 2], [], "the Parquet file cannot be read")


def _names_and_links(dump: Hostile) -> None:
    folder, cannot = dump.folder, "the file cannot be read"
    (folder / "link.json").symlink_to("mark.json")
    (folder / "around").symlink_to(".")
    (folder / "gone.json").symlink_to("nowhere.json")
    dump.expected["gone.json"] = ([], [f"{cannot} (No such file or directory)"])
    if Path("/proc/self/mem").exists():  # opens, and cannot be read by anyone
        (folder / "locked.json").symlink_to("/proc/self/mem")
        dump.expected["locked.json"] = ([], [f"{cannot} (Input/output error)"])
    (folder / ".hidden.json").write_text("{")
    good = dump.some(1)
    name = os.fsdecode(b"\xff.jsonl")
    dump.file(name, lines(records(good)) + b"{", good, "no JSON")
    dump.expected["\\udcff.jsonl"] = dump.expected.pop(name)
