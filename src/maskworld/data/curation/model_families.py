"""From the name of a model to its family, for counts and filters by family."""

from __future__ import annotations

import re

_FAMILIES = (
    ("gpt-oss", r"gpt-?oss"),
    ("gpt", r"gpt|chatgpt|codex|davinci|^o[1-9](?![0-9])|/o[1-9](?![0-9])"),
    ("claude", r"claude|opus|sonnet|haiku"),
    ("gemini", r"gemini"),
    ("gemma", r"gemma"),
    ("palm", r"palm|bison"),
    ("qwen", r"qwen|qwq"),
    ("llama", r"llama|vicuna|alpaca"),
    ("mistral", r"mi[sx]tral|ministral|codestral|devstral"),
    ("deepseek", r"deepseek"),
    ("kimi", r"kimi|moonshot"),
    ("glm", r"glm"),
    ("minimax", r"minimax"),
    ("grok", r"grok"),
    ("command", r"command-?[ar]"),
    ("granite", r"granite"),
    ("phi", r"(?<![a-z])phi-?[0-9]"),
    ("nova", r"(?<![a-z])nova-"),
    ("yi", r"(?<![a-z])yi-"),
    ("lfm", r"lfm"),
    ("starcoder", r"starchat|starcoder"),
)
_PATTERN = re.compile("|".join(f"(?P<_{index}>{pattern})" for index, (_, pattern) in enumerate(_FAMILIES)))


def model_family(player: str) -> str:
    """The family of a player's model; empty for a player that is no model known here (a person, a script).

    Of several names in one text the first decides: `openai/gpt-oss-120b` is `gpt-oss`.
    """
    found = _PATTERN.search(player.lower())
    return _FAMILIES[int(found.lastgroup[1:])][0] if found and found.lastgroup else ""
