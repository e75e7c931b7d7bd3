"""Small dumps of web shop sessions for tests of the build, and what is in a folder."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


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
