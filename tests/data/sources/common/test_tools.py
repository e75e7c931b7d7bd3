import pytest

from maskworld.data.schema import SchemaError
from maskworld.data.sources.common.tools import json_value, json_values, split_tools, tool_texts, without_nulls


def test_tools_are_one_line_each_however_they_are_held():
    expected = ('{"name":"a"}', '{"name":"b"}')
    as_list = [{"name": "a", "parameters": None}, {"name": "b"}]
    assert tool_texts(as_list, "tools") == expected
    assert tool_texts('[{"name": "a"}, {"name": "b"}]', "tools") == expected
    assert tool_texts('{"name": "a"},\n{"name": "b"}\n', "tools") == expected
    assert tool_texts(['{"name": "a"}', {"name": "b"}], "tools") == expected
    assert tool_texts("get_tide(port)", "tools") == ("get_tide(port)",)
    assert tool_texts("", "tools") == tool_texts(None, "tools") == tool_texts([], "tools") == ()
    with pytest.raises(SchemaError, match="tools: must be tools"):
        tool_texts(5, "tools")


def test_padding_goes_on_every_level_and_nothing_else():
    padded = {"a": None, "b": [{"c": None, "d": 0}, None], "e": ""}
    assert without_nulls(padded, "x") == {"b": [{"d": 0}, None], "e": ""}


def test_what_is_nested_too_deeply_is_named():
    deep = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(SchemaError, match="tools: nested too deeply"):
        tool_texts({"name": deep}, "tools")
    with pytest.raises(SchemaError, match="tools: nested too deeply"):
        tool_texts(deep, "tools")


def test_a_block_of_tools_is_cut_out_of_its_prompt():
    assert split_tools('Use:\n<tools>\n{"name": "a"}\n</tools>\nThen answer.', "x") == (
        "Use:\nThen answer.",
        ('{"name":"a"}',),
    )
    assert split_tools("Use nothing.", "x") == ("Use nothing.", ())


def test_values_follow_one_another_and_a_rest_is_text():
    assert json_values('{"a": "}"} [1],\n 2') == [{"a": "}"}, [1], 2]
    assert json_values('{"a": 1} and so on') == [{"a": 1}, "and so on"]
    assert json_values("[" * 100_000) == ["[" * 100_000]
    assert json_values(" , ") == []
    assert json_value("x NaN", 1) is None
    assert json_value('x {"y": 1e999}', 1) is None
