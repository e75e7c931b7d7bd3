"""Array shapes in annotations are jaxtyping strings: a linter that takes the quotes off leaves names nobody defined."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "maskworld"
KINDS = {"Float", "Int", "Bool", "Shaped", "UInt8", "Num"}


def unquoted_shapes(text):
    """Line numbers of `Float[Array, X]` whose X is no string."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in KINDS
        and isinstance(node.slice, ast.Tuple)
        and not (isinstance(node.slice.elts[1], ast.Constant) and isinstance(node.slice.elts[1].value, str))
    ]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_shapes_are_strings(path):
    assert not unquoted_shapes(path.read_text(encoding="utf-8"))


def test_an_unquoted_shape_is_found():
    assert unquoted_shapes('x: Float[Array, "B L"]\ny: Int[Array, B]\nz: Float[Array, T * rest]') == [2, 3]
