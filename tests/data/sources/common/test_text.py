"""What may change in a target's text, and that nothing else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskworld.data.sources.common.text import ATTACHMENT, clean, content_text, merge_operations


@pytest.mark.parametrize(
    ("raw", "text", "operations"),
    [
        ("a\r\nb", "a\nb", ("crlf",)),
        ("a\rb", "a\rb", ()),
        ("\x1b[31mred\x1b[0m \x1b[2K", "red ", ("ansi",)),
        ("a\0b", "ab", ("nul",)),
        ("\ud83d\ude00", "\U0001f600", ("surrogate_pair",)),
        ("\ude00\ud83d", "\ufffd\ufffd", ("lone_surrogate",)),
        ("\x1b\0[31mx\r\x1b[0m\n", "x\n", ("nul", "ansi", "crlf")),
        ("  ﬁ \n", "  ﬁ \n", ()),
    ],
)
def test_each_operation_is_named(raw, text, operations):
    assert clean(raw) == (text, operations)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\x1b")))
def test_other_text_is_untouched(text):
    assert clean(text) == (text, ())


@given(st.text(st.characters()))
def test_the_result_can_be_encoded(text):
    clean(text + "\ud83d").text.encode("utf-8")


def test_parts_follow_one_another_and_bytes_leave_a_mark():
    parts = [{"type": "text", "text": "a\r"}, "\nb", {"type": "image_url", "image_url": {"url": "data:..."}}]
    assert content_text(parts) == ("a\nb" + ATTACHMENT, ("crlf", "attachment"))
    assert content_text(None) == content_text([]) == content_text("") == ("", ())


@pytest.mark.parametrize("content", [3, {"text": "a"}, True])
def test_content_of_another_type_is_refused(content):
    with pytest.raises(ValueError, match="neither text nor a list"):
        content_text(content)


def test_operations_of_many_texts_are_listed_once():
    assert merge_operations([clean("\0"), clean("x"), clean("\r\n\0")]) == ["crlf", "nul"]
