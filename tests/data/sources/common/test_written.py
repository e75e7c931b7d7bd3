import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskworld.data.sources.common.pairing import Call
from maskworld.data.sources.common.written import last_block, xml_call


def test_the_call_at_the_end_of_a_text_is_read_and_its_types_only_where_asked():
    said = "Look.\n\n<function=edit>\n<parameter=path>/a b</parameter>\n<parameter=view_range>[1, -1]</parameter>\n"
    said += "<parameter=old_str>\n x > 1\n</parameter>\n</function>\n"
    assert xml_call(said) == Call("", "edit", {"path": "/a b", "view_range": "[1, -1]", "old_str": " x > 1"})
    assert xml_call(said, {"view_range"}).arguments["view_range"] == [1, -1]
    assert list(xml_call(said).arguments) == ["path", "view_range", "old_str"]


def test_a_call_without_parameters_has_no_arguments():
    assert xml_call("<function=submit>\n</function>") == Call("", "submit", {})


@pytest.mark.parametrize(
    "said",
    [
        "no call",
        "<function=bash>\n<parameter=command>ls</parameter>\n</function> and more",
        "<function=bash>\n<parameter=command>ls</parameter>",
        "<function=bash>\nls\n</function>",
        "<function=a>\n</function>\n<function=b>\n</function>",
        "<function=a>\n<parameter=x>1</parameter>\n</function>\n<function=b>\n<parameter=x>2</parameter>\n</function>",
        "<function=bash>\n<parameter=a>1</parameter>\n<parameter=a>2</parameter>\n</function>",
        "inline <function=bash>\n<parameter=command>ls</parameter>\n</function>",
    ],
)
def test_what_is_not_exactly_one_call_at_the_end_is_none(said):
    assert xml_call(said) is None


@pytest.mark.parametrize("value", ["[1, NaN]", "[1e999]", "true", "007", "[1,]", "12 ", '{"a": 1}', "9" * 5000])
def test_a_typed_value_that_is_no_integers_stays_text(value):
    said = f"<function=edit>\n<parameter=line>{value}</parameter>\n</function>"
    assert xml_call(said, {"line"}).arguments == {"line": value}


@pytest.mark.parametrize(("value", "meant"), [("[]", []), ("-3", -3), ("[1,2]", [1, 2]), ("0", 0)])
def test_integers_and_arrays_of_them_are_read(value, meant):
    said = f"<function=edit>\n<parameter=line>{value}</parameter>\n</function>"
    assert xml_call(said, {"line"}).arguments == {"line": meant}


_names = st.text("abcxyz_", min_size=1, max_size=5)
_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20).filter(
    lambda value: "<" not in value
)


@given(_names, st.dictionaries(_names, _values, max_size=4))
def test_every_call_that_is_written_comes_back(name, arguments):
    lines = [f"<parameter={key}>\n{value}\n</parameter>" for key, value in arguments.items()]
    said = "\n".join(["Thought.\n", f"<function={name}>", *lines, "</function>"])
    assert xml_call(said) == Call("", name, arguments)


def test_the_last_block_outside_of_others_is_taken_whole():
    assert last_block("```\nls\n\n```") == "ls\n"
    assert last_block("One:\n\n```\nls\n```\nTwo:\n\n```\npwd\n```") == "pwd"
    assert last_block("Text.\n\n```\ncat <<'E'\n```python\nx\n```\nE\n```") == "cat <<'E'\n```python\nx\n```\nE"
    assert last_block("```\n```") == ""


@pytest.mark.parametrize("said", ["", "no fence", "```\nnever closed", "a ``` b ``` c", "text\n```\nls\n```"])
def test_no_block_is_none(said):
    assert last_block(said) is None


def test_the_rest_of_a_command_that_held_fences_is_not_taken_for_a_command():
    assert last_block("Write.\n\n```\ncat > a.md <<'E'\n```\ncode\n```\nrest\nE\n```") is None


@given(st.text("`\n ax<>=/", max_size=60) | st.text(max_size=40))
def test_no_text_makes_the_readers_fail(said):
    xml_call(said, {"a"})
    last_block(said)
