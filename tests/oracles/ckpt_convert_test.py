"""Hugging Face models into a training checkpoint and out again: transformers wrote them, and loads what comes back."""
import json

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hf_roundtrip_test import BRAID, answer, assert_same_tensors, convert, nemotron_h, radio, randomize, tensors_of

from programs import run_program

# The models of hf_roundtrip_test, as a recipe has them.
RECIPE = """
topology:
  colocated: true
  modules: {images: {kind: encoder}, language: {}}
model:
  dtype: %s
  language: {pattern: "ME*-M", hidden: 32, vocab: 64, heads: 6, kv_heads: 2, head_dim: 8, mamba_heads: 8,
             mamba_head_dim: 8, mamba_groups: 2, mamba_state: 8, mamba_chunk: 16, mamba_dt_min: 0.01, ffn: 48,
             experts: 4, top_k: 2, expert_ffn: 24, shared_ffn: 40, router_scaling: 2.5}
  images:
    encoder: {hidden: 48, layers: 2, heads: 4, ffn: 144, position_side: 8, class_tokens: 7, gelu: erf, layer_scale: true,
              final_norm: false, normalize_pixels: true}
    projector: {input: 192, output: 32}
    token_id: 63
data: {sequence_length: 64, alphabet: 32}
train: {iterations: 1, micro_batch: 2, global_batch: 2}
"""
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def save_models(tmp_path, dtype):
    for name, make in (("language", nemotron_h), ("images", radio)):
        randomize(make()).to(dtype).save_pretrained(tmp_path / name)
    (tmp_path / "recipe.yaml").write_text(RECIPE % str(dtype).split(".")[1])
    return convert("convert", "--recipe", tmp_path / "recipe.yaml", "--language", tmp_path / "language", "--images",
                   tmp_path / "images", tmp_path / "ckpt")


def assert_same_weights(back, original, dtype):
    """Buffers are float32 in every checkpoint; which class tokens make a summary is not part of one."""
    original.pop("radio_model.summary_idxs", None)
    for name, tensor in back.items():
        if tensor.dtype != dtype:
            assert tensor.dtype == torch.float32 and name.endswith(("e_score_correction_bias", "norm_mean", "norm_std"))
            original[name] = original[name].float()
    assert_same_tensors(back, original)


@DTYPES
def test_weights_come_back_bit_for_bit(tmp_path, dtype):
    said = save_models(tmp_path, dtype)
    assert "note:" not in said
    for module, kind in (("language", nemotron_h), ("images", radio)):
        convert("convert", tmp_path / "ckpt", tmp_path / f"{module}_back", "--to-hf", module)
        assert_same_weights(tensors_of(tmp_path / f"{module}_back"), tensors_of(tmp_path / module), dtype)
        theirs = type(kind()).from_pretrained(tmp_path / module, dtype="auto")
        ours, report = type(theirs).from_pretrained(tmp_path / f"{module}_back", dtype="auto", output_loading_info=True)
        assert set(report["missing_keys"]) <= {"summary_idxs"} and not report["unexpected_keys"], report
        assert ours.dtype == dtype
        # The last values are logits, or features, which do not depend on the summary's tokens.
        assert torch.equal(answer(ours).flatten()[-200:], answer(theirs).flatten()[-200:])


def test_torch_reads_the_checkpoint(tmp_path):
    save_models(tmp_path, torch.float32)
    weights = tensors_of(tmp_path / "language")
    key = "language_model.module.embedding.word_embeddings.weight"
    state = {key: torch.zeros(64, 32)}
    dcp.load(state, checkpoint_id=tmp_path / "ckpt/iter_0000000", no_dist=True)
    assert torch.equal(state[key], weights["backbone.embeddings.weight"])


def test_training_starts_from_the_weights(tmp_path):
    save_models(tmp_path, torch.float32)
    run = run_program([BRAID, "train", tmp_path / "recipe.yaml", "--load", tmp_path / "ckpt", "--finetune", "--train.lr",
                       "0", "--save", tmp_path / "trained"])
    assert run.returncode == 0, run.stderr
    assert f"starts at iteration 0 with the weights of {tmp_path / 'ckpt'};" in run.stdout and "resumes" not in run.stdout
    convert("convert", tmp_path / "trained", tmp_path / "back", "--to-hf", "language")
    back, original = tensors_of(tmp_path / "back"), tensors_of(tmp_path / "language")
    moved = {name for name in original if not torch.equal(back[name], original[name])}
    assert all("e_score_correction_bias" in name for name in moved), moved


def test_a_model_that_does_not_fit_is_refused(tmp_path):
    save_models(tmp_path, torch.float32)
    (tmp_path / "other.yaml").write_text((RECIPE % "float32").replace("ffn: 48", "ffn: 64"))
    run = run_program([BRAID, "ckpt", "convert", "--recipe", tmp_path / "other.yaml", "--language",
                       tmp_path / "language", tmp_path / "new"])
    assert run.returncode == 2
    assert "the recipe has ffn: 64, the folder has ffn: 48" in run.stderr
    assert "decoder.layers.3.mlp.linear_fc1.weight is [48, 32], but the recipe's is [64, 32]" in run.stderr
    assert not (tmp_path / "new").exists()


# What only changes how the model computes is said, not refused.
def test_another_setting_is_noted(tmp_path):
    save_models(tmp_path, torch.float32)
    (tmp_path / "other.yaml").write_text((RECIPE % "float32").replace("mamba_dt_min: 0.01", "mamba_dt_min: 0"))
    said = convert("convert", "--recipe", tmp_path / "other.yaml", "--language", tmp_path / "language", tmp_path / "new")
    assert "the recipe has mamba_dt_min: 0," in said and "mamba_dt_min: 0.01" in said


# Another program's checkpoint, without common.pt and checksums.
def test_plain_torch_checkpoints(tmp_path):
    state = {"model.weight": torch.randn(12, 5), "optimizer.exp_avg": torch.randn(7), "step": 3}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert "unknown: there is no common.pt" in convert("ls", tmp_path / "dcp")
    assert "no checksums: values were not checked" in convert("verify", tmp_path / "dcp")
    assert "F32 [12, 5]" in convert("show", tmp_path / "dcp", "model.weight")
    assert convert("show", tmp_path / "dcp", "step").strip() == "3"
    convert("convert", tmp_path / "dcp", tmp_path / "copy", "--files", "2")
    assert "2 of 2 tensors are equal" in convert("diff", tmp_path / "dcp", tmp_path / "copy")
    again = {"model.weight": torch.zeros(12, 5), "optimizer.exp_avg": torch.zeros(7), "step": 0}
    dcp.load(again, checkpoint_id=tmp_path / "copy/iter_0000000", no_dist=True)
    assert again["step"] == 3 and torch.equal(again["model.weight"], state["model.weight"])
    assert "intact" in convert("verify", tmp_path / "copy")
    assert json.loads(convert("ls", tmp_path / "copy", "--json"))[0]["latest"]
