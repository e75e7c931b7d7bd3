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


def hostile_files(folder: Path) -> dict[str, tuple[list[int], list[str]]]:
    """Writes them; the sessions that are good in each, and what is said of the others, in their order."""
    zstd = pyarrow.Codec("zstd")
    expected: dict[str, tuple[list[int], list[str]]] = {}
    count = 0

    def file(name, content, good, *reasons):
        nonlocal count
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        expected[name] = (good, list(reasons))

    def some(number):
        nonlocal count
        count += number
        return list(range(count - number, count))

    def records(numbers):
        return [session(number) for number in numbers]

    good = some(40)
    packed = gzip.compress(lines(records(good)))
    kept = good[: gzip_lines(packed[: len(packed) // 2])]
    file("cut.jsonl.gz", packed[: len(packed) // 2], kept, "the gzip stream is cut off")
    good = some(30)
    file(
        "twice.gz", gzip.compress(lines(records(good[:10]))) + gzip.compress(lines(records(good[10:]))) + bytes(9), good
    )
    good = some(3)
    packed = zstd.compress(lines(records(good)), asbytes=True)
    file("sound.zst", packed, good)
    file("cut.zst", packed[:-4], [], "the zstd stream is damaged or cut off")
    good = some(3)
    bomb = gzip.compress(lines(records(good[:2])) + (b" " * (1 << 20) + b"\n") * 16 + lines(records(good[2:])))
    file("bomb.jsonl.gz", bomb, good)
    good = some(2)
    long = b'{"item_id": "webshop_long", "conversations": "' + b"x" * (3 << 20) + b'"}\n'
    file("long.jsonl", lines(records(good[:1])) + long + lines(records(good[1:])), good, "is longer than 2 MiB")
    good = some(2)
    unused = [session(good[0], unused=float("nan")), session(good[1], unused=[float("inf")])]
    file("numbers.json", lines([*unused, session(-1, reward=float("nan"))]), good, "must be finite, is nan")
    good = some(3)
    broken = b'{"item_id": "webshop", "conversations": [], "x": %s}\n' % DEEP.encode()
    content = lines(records(good[:1])) + broken + lines(records(good[1:2]))
    file("levels.jsonl", content + b'{"a": 1, "a": 2}\n{"a": "\xff"}\n\n' + lines(records(good[2:])), good,
         "nested too deeply", "occurs twice in one object", "no UTF-8 at byte 7 (0xff)")  # fmt: skip
    good = some(4)
    entries = [json.dumps(record).encode() for record in records(good)]
    broken = [broken.strip(), b'{"item_id": 1, "item_id": 2}', b'{"item_id": "\xff"}', b'{"item_id": tru}']
    content = b"[" + b", ".join(entry for pair in zip(entries, broken, strict=True) for entry in pair) + b"]"
    file("entries.json", content, good, "nested too deeply", "occurs twice in one object",
         "no UTF-8 at character 13 of the value", "no JSON: Expecting value at character 12")  # fmt: skip
    good = some(2)
    file("cut.json", json.dumps(records(good), indent=1)[:-5], good[:1], "cut off")
    file("mark.json", "\ufeff" + json.dumps(records(some(1))), [count - 1])
    good = some(2)
    file("pretty.json", json.dumps(session(good[0]), indent=2) + "\n" + json.dumps(session(good[1]), indent=2), good)
    good = some(2)
    file("ends/cr.json", lines(records(good)).replace(b"\n", b"\r"), good)
    good = some(2)
    file("ends/crlf.json", lines(records(good)).replace(b"\n", b"\r\n"), good)
    file("wide.json", json.dumps(records([0])).encode("utf-16"), [], "is UTF-16, not UTF-8")
    file("other/number.json", "5", [], "holds neither JSON, JSON Lines nor Parquet")
    file("other/image.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), [], "holds neither JSON, JSON Lines nor Parquet")
    file("other/README.md", "# Sessions\n\nof shops\n", [], "holds neither JSON, JSON Lines nor Parquet")
    file("other/nothing", b"", [])
    file("other/blank.jsonl", b"\n\n \n", [])
    file(
        "other/unknown.json",
        json.dumps({"a": 1}),
        [],
        "no source recognises the record; --source NAME says which it is",
    )
    file("other/silent.json", json.dumps(chat("WebShop")), [], "holds no transition")
    half = chat("WebShop \ud800")
    half["conversations"][0]["\ud800"] = half["conversations"][0].pop("from")
    file("other/half.json", json.dumps(half), [], "is missing")
    good = some(25)
    columns = {name: [record[name] for record in records(good)] for name in ("item_id", "conversations")}
    columns |= {"untyped": pyarrow.nulls(25), "json": [DEEP] * 25}
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=7)
    expected["rows.parquet"] = (good, [])
    pyarrow.parquet.write_table(table.slice(0, 0), folder / "no_rows.parquet")
    expected["no_rows.parquet"] = ([], [])
    content = (folder / "rows.parquet").read_bytes()
    file("cut.parquet", content[: len(content) // 2], [], "the Parquet file cannot be read")
    (folder / "link.json").symlink_to("mark.json")
    (folder / "around").symlink_to(".")
    (folder / "gone.json").symlink_to("nowhere.json")
    expected["gone.json"] = ([], ["the file cannot be read (No such file or directory)"])
    (folder / "locked.json").symlink_to("/proc/self/mem")  # opens, and cannot be read by anyone
    expected["locked.json"] = ([], ["the file cannot be read (Input/output error)"])
    file(".hidden.json", b"{", [])
    del expected[".hidden.json"]
    name = os.fsdecode(b"\xff.jsonl")
    file(name, lines(records(some(1))) + b"{", [count - 1], "no JSON")
    expected["\\udcff.jsonl"] = expected.pop(name)
    return expected


def gzip_lines(cut: bytes) -> int:
    return zlib.decompressobj(31).decompress(cut).count(b"\n")
