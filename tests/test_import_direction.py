"""WORKSPACE.md says what may import what; this keeps it true."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "maskworld"
ROOMS = (
    "diffusion",
    "models",
    "parallel",
    "data",
    "training",
    "conversion",
    "environments",
    "evaluation",
    "benchmarks",
)
KNOWS_NO_ROOM = ("diffusion", "parallel", "data")


def imported_rooms(path):
    """Rooms of the package that a file imports anywhere, lazily or not."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "maskworld":
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("maskworld."):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names.update(a.name.split(".")[1] for a in node.names if a.name.startswith("maskworld."))
    return names & set(ROOMS)


def files(room):
    return [(path, path.relative_to(PACKAGE).as_posix()) for path in (PACKAGE / room).rglob("*.py")]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_before_it(room):
    allowed = set() if room in KNOWS_NO_ROOM else set(ROOMS[: ROOMS.index(room)])
    for path, name in files(room):
        assert imported_rooms(path) <= allowed | {room}, name


def test_modules_at_the_root_import_no_room_but_the_command_line():
    for path in PACKAGE.glob("*.py"):
        if path.name not in ("cli.py", "cli_convert.py", "cli_data.py"):
            assert not imported_rooms(path), path.name


def test_the_map_names_every_room_in_this_order():
    text = (REPOSITORY / "WORKSPACE.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `src/maskworld/(\w+)/` \|", text, re.MULTILINE)
    assert tuple(named) == ROOMS
    assert set(ROOMS) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
