"""Hugging Face folders to runs and back: every family and variant, bit for bit; and folders that are not right."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest
from hugging_face_folders import DTYPES, raw_config, tensors, write_checkpoint

from maskworld import cli
from maskworld.config import MeshConfig
from maskworld.configure import load_config
from maskworld.conversion.config_reading import describe
from maskworld.conversion.load import load_folder
from maskworld.conversion.safetensors_file import read_folder
from maskworld.conversion.safetensors_writer import Outline, write_folder
from maskworld.models.transformer import Network
from maskworld.parallel.mesh import make_mesh
from maskworld.training.checkpoints import load_params
from maskworld.training.step import network_shardings

VARIANTS = {
    "qwen3": raw_config("qwen3"),
    "qwen3 of 5, untied, biased": raw_config("qwen3", 5, tie_word_embeddings=False, attention_bias=True),
    "qwen3_moe": raw_config("qwen3_moe"),
    "qwen3_moe of 5, sparse": raw_config(
        "qwen3_moe",
        5,
        num_hidden_layers=4,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
        num_local_experts=8,
        num_experts_per_tok=3,
        norm_topk_prob=False,
        num_key_value_heads=1,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "sdar": raw_config("sdar"),
    "sdar_moe": raw_config("qwen3_moe", model_type="sdar_moe", architectures=["SDARMoeForCausalLM"], block_size=8),
    "mistral": raw_config("mistral"),
    "mistral, windowed": raw_config("mistral", sliding_window=8, tie_word_embeddings=True, num_key_value_heads=6),
    "lfm2": raw_config("lfm2"),
    "lfm2 of 5, biased": raw_config(
        "lfm2", 5, conv_bias=True, conv_L_cache=4, tie_word_embeddings=False, block_auto_adjust_ff_dim=False
    ),
    "llada": raw_config("llada"),
    "llada, grouped, tied": raw_config("llada", n_kv_heads=2, weight_tying=True, embedding_size=512),
    "wedlm": raw_config("wedlm"),
    "wedlm, biased": raw_config("wedlm", attention_bias=True, qk_norm=False, tie_word_embeddings=True),
}


def run(*words):
    return cli.main([str(word) for word in words])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_there_and_back_changes_no_bit(variant, dtype, tmp_path):
    source = write_checkpoint(tmp_path / "source", VARIANTS[variant], dtype, shard_bytes=100_000)
    assert (source / "model.safetensors.index.json").is_file()
    assert run("convert", "hf", source, "--to", tmp_path / "run") == 0
    assert run("convert", "export", tmp_path / "run", "--to", tmp_path / "back", "--shard_size", "200KB") == 0
    assert tensors(tmp_path / "back") == tensors(source)
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 1
    back = json.loads((tmp_path / "back" / "config.json").read_text())
    assert describe(back).model == describe(VARIANTS[variant]).model
    loaded = load_params(tmp_path / "run")
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(loaded.params)} == {np.dtype(DTYPES[dtype]).name}


@pytest.mark.parametrize(
    ("family", "objective", "draw_t", "block_length"),
    [
        ("llada", "full_sequence", "document", 32),
        ("sdar", "block_diffusion", "block", 4),
        ("qwen3", "autoregressive", "block", 4),
    ],
)
def test_a_converted_run_has_the_objective_of_its_family(family, objective, draw_t, block_length, tmp_path, capsys):
    raw = raw_config(family)
    source = write_checkpoint(tmp_path / "source", {key: raw[key] for key in raw if key != "block_size"})
    assert run("convert", "hf", source, "--to", tmp_path / "run") == 0
    diffusion = load_config(tmp_path / "run" / "config.json").diffusion
    assert (diffusion.objective, diffusion.draw_t, diffusion.block_length) == (objective, draw_t, block_length)
    assert f"block length: {block_length}, because" in capsys.readouterr().out


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_read_has_the_shapes_of_the_network_and_lies_where_the_mesh_says(variant, tmp_path):
    source = write_checkpoint(tmp_path / "source", VARIANTS[variant])
    model = describe(VARIANTS[variant]).model
    network = Network(model, model.vocabulary_size)
    shardings = network_shardings(network, make_mesh(MeshConfig(data=1, fsdp=2, tensor=2, expert=2)))
    params, whole = load_folder(source, shardings), load_folder(source)
    assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(lambda x: x.shape, network.abstract_params())
    assert jax.tree.all(jax.tree.map(lambda x, place: x.sharding.is_equivalent_to(place, x.ndim), params, shardings))
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((np.asarray(x) == np.asarray(y)).all()), params, whole))


@pytest.mark.parametrize(
    ("variant", "objective"),
    [("sdar", "block_diffusion"), ("qwen3", "autoregressive"), ("wedlm", "wedlm"), ("wedlm, biased", "wedlm")],
)
def test_a_folder_becomes_a_run_of_its_family_s_objective(variant, objective, tmp_path):
    source = write_checkpoint(tmp_path / "source", VARIANTS[variant])
    assert run("convert", "hf", source, "--to", tmp_path / "run") == 0
    assert load_config(tmp_path / "run" / "config.json").diffusion.objective == objective
    shifted = load_params(tmp_path / "run").contract.logit_alignment == "shifted"
    assert shifted == (objective == "autoregressive")


def damaged(change, tmp_path, raw=None):
    """A folder that `change` has been at."""
    raw = raw_config("qwen3", num_hidden_layers=1) if raw is None else raw
    source = write_checkpoint(tmp_path / "source", raw)
    change(source)
    return source


def without(name):
    def change(source):
        entries = read_folder(source)
        shapes = {key: entry.shape for key, entry in entries.items() if key != name}
        outlines = [Outline(key, np.dtype(np.float32), shape) for key, shape in shapes.items()]
        write_folder(source, outlines, (np.zeros(o.shape, np.float32) for o in outlines), 10**9)

    return change


def reshaped(name, shape):
    def change(source):
        shapes = {key: entry.shape for key, entry in read_folder(source).items()} | {name: shape}
        outlines = [Outline(key, np.dtype(np.float32), one) for key, one in shapes.items()]
        write_folder(source, outlines, (np.zeros(o.shape, np.float32) for o in outlines), 10**9)

    return change


def cut(source):
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def written(name, content):
    def change(source):
        (source / name).write_bytes(content)

    return change


def in_shards(change_index=lambda weight_map: None, then=lambda source: None):
    """The folder in shards, its index changed and then something more."""

    def change(source):
        raw = json.loads((source / "config.json").read_text())
        shutil.rmtree(source)
        write_checkpoint(source, raw, shard_bytes=100_000)
        index = source / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        change_index(content["weight_map"])
        index.write_text(json.dumps(content))
        then(source)

    return change


def second_shard(change):
    return lambda source: change(sorted(source.glob("*.safetensors"))[1])


def said(**changes):
    def change(source):
        file = source / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def tokenizer(**ids):
    """A tokenizer.json with 500 words and special tokens."""

    def change(source):
        vocab = {f"w{i}": i for i in range(480)}
        added = [{"id": id, "content": token.replace("_", "|"), "special": True} for token, id in ids.items()]
        spec = {"model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": added}
        (source / "tokenizer.json").write_text(json.dumps(spec))

    return change


def both(*changes):
    def change(source):
        for one in changes:
            one(source)

    return change


REFUSED = {
    "a missing tensor": (without("model.norm.weight"), "lacks 1 of .* tensors .*model.norm.weight"),
    "a wrong shape": (
        reshaped("model.layers.0.mlp.up_proj.weight", (7, 96)),
        r"model.layers.0.mlp.up_proj.weight.*7.*224",
    ),
    "an unexpected tensor": (reshaped("model.layers.9.extra", (3,)), "model.layers.9.extra"),
    "an unknown architecture": (said(model_type="gpt_oss", architectures=["GptOss"]), "gpt_oss.* not known here"),
    "another head size": (said(head_dim=16), "head_dim|q_proj"),
    "a truncated file": (cut, "model.safetensors.*bytes"),
    "a cut shard": (
        in_shards(then=second_shard(lambda file: file.write_bytes(file.read_bytes()[:-10]))),
        "model-00002-of.*is cut off",
    ),
    "a shard that is not there": (in_shards(then=second_shard(Path.unlink)), "not there: model-00002-of"),
    "an index that names a strange shard": (
        in_shards(lambda names: names.update({"model.norm.weight": "model-9.safetensors"})),
        "index.json: names 1 shards that are not there: model-9.safetensors",
    ),
    "an index that lacks a tensor": (
        in_shards(lambda names: names.pop("model.norm.weight")),
        "holds model.norm.weight, which model.safetensors.index.json does not name",
    ),
    "a pointer in place of weights": (
        written("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        "model.safetensors: is a Git LFS pointer",
    ),
    "a broken config.json": (written("config.json", b'{"hidden_size": '), "config.json: no JSON .*line 1"),
    "a config.json of bytes": (written("config.json", b"\xff\xfe\x00"), "config.json: no JSON"),
    "a config.json without end": (written("config.json", b"[" * 100_000), "config.json: no JSON .*recursion"),
    "a config.json that is a list": (written("config.json", b"[]"), "config.json: no JSON object"),
    "no config.json": (lambda source: (source / "config.json").unlink(), "source: no config.json in it"),
    "a model_type that is no name": (said(model_type=["qwen3"]), r"model_type \['qwen3'\] is not known here"),
    "a size that is no whole number": (said(hidden_size=96.0), "hidden_size is 96.0; it must be a whole number"),
    "more layers than there can be": (
        said(num_hidden_layers=10**9),
        "num_hidden_layers is 1000000000; it must be a whole number from 1 to 10000",
    ),
    "a broken tokenizer": (written("tokenizer.json", b'{"model":'), "tokenizer.json: not what such a file holds"),
    "a tokenizer of another model": (tokenizer(end=600), "has 'end' as 600; the embedding has 512 rows"),
    "scaled rotary positions": (said(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rope"),
    "another activation": (said(hidden_act="gelu"), "hidden_act"),
    "a mask beyond the rows": (
        said(mask_token_id=512),
        "mask_token_id.* is 512; the embedding has rows 0 to 511. Give the row",
    ),
    "a mask that no token is": (both(said(mask_token_id=505), tokenizer(end=490)), "505, which the tokenizer has no"),
    "a mask that means something else": (
        both(said(mask_token_id=490), tokenizer(**{"<tool_response>": 490})),
        "490.*<tool.response>.*--mask_id 491",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named_and_nothing_is_left_behind(case, tmp_path, capsys):
    import re

    change, message = REFUSED[case]
    source = damaged(change, tmp_path)
    (tmp_path / "out").mkdir()
    assert run("convert", "hf", source, "--to", tmp_path / "out" / "run") == 2
    told = capsys.readouterr().err
    assert re.search(message, told.replace("\n", " ")), told
    assert list((tmp_path / "out").iterdir()) == []


def test_what_is_no_folder_is_told_from_what_is_not_there(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    for name, message in (("file", "file: a file; give the folder"), ("none", "none: no such folder")):
        assert run("convert", "hf", tmp_path / name, "--to", tmp_path / "run") == 2
        assert message in capsys.readouterr().err
    source = write_checkpoint(tmp_path / "source", raw_config("qwen3", num_hidden_layers=1))
    assert run("convert", "hf", source, "--to", tmp_path / "file" / "run") == 2
    assert "a file is in the way" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "source"]


@pytest.mark.parametrize(
    ("content", "message"), [("{", "no JSON"), ("[]", "no JSON object"), ('{"model_type": "gpt2"}', "'gpt2'")]
)
def test_a_broken_original_is_named_when_a_run_is_exported(content, message, tmp_path, capsys):
    source = write_checkpoint(tmp_path / "source", raw_config("qwen3", num_hidden_layers=1))
    assert run("convert", "hf", source, "--to", tmp_path / "run") == 0
    original = tmp_path / "run" / "hugging_face" / "config.json"
    original.write_text(content)
    assert run("convert", "export", tmp_path / "run", "--to", tmp_path / "back") == 2
    told = capsys.readouterr().err
    assert str(original) in told and message in told and not (tmp_path / "back").exists()
    original.unlink()
    assert run("convert", "export", tmp_path / "run", "--to", tmp_path / "back") == 0


def test_an_existing_target_is_refused_and_kept(tmp_path, capsys):
    source = write_checkpoint(tmp_path / "source", raw_config("qwen3", num_hidden_layers=1))
    target = tmp_path / "run"
    target.mkdir()
    (target / "mine").write_text("precious")
    assert run("convert", "hf", source, "--to", target) == 2
    assert str(target) in capsys.readouterr().err and (target / "mine").read_text() == "precious"


def test_a_redundant_head_of_tied_embeddings_is_ignored(tmp_path):
    source = damaged(reshaped("lm_head.weight", (512, 96)), tmp_path)
    assert run("convert", "hf", source, "--to", tmp_path / "run") == 0


@pytest.mark.slow
def test_loading_never_holds_the_model_twice(tmp_path):
    """A checkpoint of 2 GB: the peak over what an idle process with jax takes is below 1.3 of its size."""
    raw = raw_config(
        "qwen3",
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=17,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=32000,
    )
    source = write_checkpoint(tmp_path / "source", raw, "BF16", shard_bytes=700_000_000)
    size = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    assert 1.8e9 < size < 2.3e9
    program = f"""
        import jax
        from pathlib import Path
        from maskworld.conversion.load import load_folder
        jax.numpy.zeros(8).block_until_ready()
        def peak():
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0])
        before = peak()
        params = jax.block_until_ready(load_folder(Path({str(source)!r})))
        print((peak() - before) * 1024 / {size})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, env=_environment()
    )
    shutil.rmtree(source)
    assert 0.9 < float(done.stdout) < 1.3, done.stdout


def _environment():
    import os

    return {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
