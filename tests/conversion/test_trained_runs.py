"""Runs that begin with a Hugging Face folder and end as one: low-rank updates, control tokens, the files beside."""

import json

import jax
import numpy as np
import pytest
import tiny_run
from hugging_face_folders import array, raw_config, tensors, write_checkpoint, write_tokenizer

from maskworld import cli
from maskworld.configure import load_config
from maskworld.data.tokenizer import CONTROLS, load_tokenizer
from maskworld.training.checkpoints import load_params

ROWS = 300
TOKENS = {"<|MASK|>": 280, "<|endoftext|>": 281, "<|im_end|>": 282}


def run(*words):
    return cli.main([str(word) for word in words])


def converted(folder, raw, tokens=TOKENS, dtype="F32", flags=()):
    source = write_checkpoint(folder / "source", raw | {"vocab_size": ROWS}, dtype)
    write_tokenizer(source, tokens)
    (source / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 77}))
    (source / "modeling_own.py").write_text("raise SystemExit('never run')")
    assert run("convert", "hf", source, "--to", folder / "run", *flags) == 0
    return source


def trained(folder, *flags):
    tiny_run.write_data(folder / "data")
    given = {"data.trajectories": folder / "data", "data.row_length": 128, "diffusion.objective": "block_diffusion"}
    given |= {"training.steps": 2, "training.batch_size": 8, "optimizer.warmup_steps": 0, "training.validate_every": 0}
    given |= {"optimizer.peak_learning_rate": 0.02, "training.initialize_from": folder / "run"}
    words = [word for key, value in given.items() for word in (f"--{key}", value)]
    assert run("train", folder / "run" / "config.json", "--run", folder / "mine", *words, *flags) == 0
    assert run("convert", "export", folder / "mine", "--to", folder / "out", "--checkpoint", "latest") == 0
    return tensors(folder / "out")


LORA = ("--model.lora.rank", "4", "--model.lora.alpha", "8")


@pytest.mark.parametrize("family", ["sdar", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
def test_an_export_of_low_rank_updates_is_the_weights_plus_their_product(family, tmp_path):
    raw = raw_config(family, mask_token_id=280, num_hidden_layers=2)
    source = converted(tmp_path, raw)
    before, after = tensors(source), trained(tmp_path, *LORA)
    experts = range(raw["num_experts"]) if family == "qwen3_moe" else ()
    (kind,) = load_params(tmp_path / "mine", "latest").params["layers"].values()
    updates = {}
    for layer in range(2):
        for part, name in {"query": "q", "key": "k", "value": "v", "out": "o"}.items():
            updates[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = kind["mixer"][part], (layer,)
        for part in ("gate", "up", "down"):
            dense, place = f"model.layers.{layer}.mlp.", kind["feed_forward"][part]
            updates |= {f"{dense}experts.{i}.{part}_proj.weight": (place, (layer, i)) for i in experts}
            updates |= {} if experts else {f"{dense}{part}_proj.weight": (place, (layer,))}
    changed = 0
    for name, tensor in before.items():
        wanted = array(tensor)
        if name in updates:
            factors, place = updates.pop(name)
            a, b = np.asarray(factors["lora_a"])[place], np.asarray(factors["lora_b"])[place]
            changed += bool(np.abs(a @ b).max() > 1e-4)
            wanted = wanted + (8 / 4) * (a @ b).T
        rows = min(len(wanted), 280)  # those from the first control token on may have been drawn anew
        np.testing.assert_allclose(array(after[name])[:rows], wanted[:rows], atol=1e-6, err_msg=name)
    assert not updates and changed > 10


def test_an_export_of_a_trained_run_has_the_files_and_keys_of_the_folder_it_began_with(tmp_path):
    raw = raw_config(
        "sdar", mask_token_id=280, auto_map={"AutoModel": "modeling_own.Own"}, bos_token_id=7, eos_token_id=281
    )
    source = converted(tmp_path, raw, dtype="BF16")
    trained(tmp_path, *LORA)
    for name in ("tokenizer.json", "tokenizer_config.json", "modeling_own.py"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (said["auto_map"], said["bos_token_id"], said["mask_token_id"]) == (raw["auto_map"], 7, 280)
    # What was exported is where the next stage begins: the same tokenizer, the same control tokens.
    assert run("convert", "hf", tmp_path / "out", "--to", tmp_path / "again") == 0
    assert load_params(tmp_path / "again").contract.control_ids == load_params(tmp_path / "mine").contract.control_ids


def test_a_run_made_with_another_tokenizer_is_exported_with_that_one(tmp_path):
    source = converted(tmp_path, raw_config("sdar", mask_token_id=280))
    other = tmp_path / "other"
    other.mkdir()
    write_tokenizer(other, TOKENS, words=9)
    assert run("convert", "hf", source, "--to", tmp_path / "second", "--tokenizer", other) == 0
    assert run("convert", "export", tmp_path / "second", "--to", tmp_path / "out") == 0
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("tokens", "mask"),
    [
        ({"<|endoftext|>": 299}, 300),  # every row has a token: the mask gets a new one, three others too
        ({"<|MASK|>": 298, "<|endoftext|>": 299}, 298),
    ],
)
def test_rows_for_control_tokens_are_appended_and_those_before_keep_every_bit(tied, tokens, mask, tmp_path, capsys):
    full = {f"<|reserved_{i}|>": i for i in range(256, ROWS) if i not in tokens.values()} | tokens
    raw = raw_config("mistral", tie_word_embeddings=tied, mask_token_id=None)
    source = converted(tmp_path, raw, full, "BF16")
    told = capsys.readouterr().out
    tokenizer = load_tokenizer(tmp_path / "run" / "data" / "tokenizer")
    rows = tokenizer.vocabulary_size
    assert tokenizer.mask_id == mask and ROWS < rows <= ROWS + len(CONTROLS)
    assert f"from {ROWS} to {rows} rows" in told
    loaded, config = load_params(tmp_path / "run"), load_config(tmp_path / "run" / "config.json")
    assert loaded.contract.vocabulary_size == config.model.vocabulary_size == rows
    embedding = np.asarray(loaded.params["embedding"], np.float32)
    length = np.linalg.norm(embedding, axis=1)
    np.testing.assert_allclose(length[ROWS:], np.median(length[:ROWS]), rtol=0.05)
    assert len({row.tobytes() for row in embedding[ROWS:]}) == rows - ROWS
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(loaded.params)} == {"bfloat16"}

    assert run("convert", "export", tmp_path / "run", "--to", tmp_path / "back") == 0
    before, after = tensors(source), tensors(tmp_path / "back")
    ends = {"model.embed_tokens.weight"} | (set() if tied else {"lm_head.weight"})
    for name, (kind, shape, content) in before.items():
        new_kind, new_shape, new_content = after[name]
        assert kind == new_kind and (new_content == content or name in ends), name
        assert new_content[: len(content)] == content and new_shape == (
            (rows if name in ends else shape[0]),
            *shape[1:],
        )
    said = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (said["vocab_size"], said["mask_token_id"]) == (rows, mask)
    # What was written can be read again, with the same ids and without further rows.
    assert run("convert", "hf", tmp_path / "back", "--to", tmp_path / "again", "--mask_id", str(mask)) == 0
    assert load_params(tmp_path / "again").contract == loaded.contract


def test_weights_are_not_trained_in_the_folder_that_holds_them(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    converted(tmp_path, raw_config("sdar", mask_token_id=280))
    held = sorted(tmp_path.rglob("*"))
    assert run("train", tmp_path / "run" / "config.json", "--run", tmp_path / "run") == 2
    assert f"--training.initialize_from {tmp_path / 'run'}" in capsys.readouterr().err
    assert run("train", tmp_path / "run" / "config.json", "--training.initialize_from", tmp_path / "none") == 2
    assert "no such run folder" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == held


def test_a_tokenizer_that_cannot_serve_adds_no_rows(tmp_path, capsys):
    source = write_checkpoint(tmp_path / "source", raw_config("mistral", vocab_size=ROWS))
    pieces = {f"w{i}": i for i in range(ROWS)}
    spec = {"model": {"type": "Unigram", "vocab": [[piece, 0.0] for piece in pieces]}, "added_tokens": []}
    (source / "tokenizer.json").write_text(json.dumps(spec))
    assert run("convert", "hf", source, "--to", tmp_path / "run") == 0
    told = capsys.readouterr().out
    assert "no mask" in told and "cannot be used here" in told
    assert load_config(tmp_path / "run" / "config.json").model.vocabulary_size == ROWS
    assert load_params(tmp_path / "run").contract.mask_id == -1
