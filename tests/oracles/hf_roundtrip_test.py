"""Hugging Face models through Braid and back: transformers writes them, loads what comes back, and computes the same."""
import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import NemotronHConfig, NemotronHForCausalLM, RadioConfig, RadioModel

from programs import run_program

BRAID = os.environ["BRAID"]


def nemotron_h():
    layers = ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"]
    return NemotronHForCausalLM(NemotronHConfig(
        vocab_size=64, hidden_size=32, layers_block_type=layers, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, ssm_state_size=8, mamba_num_heads=8, mamba_head_dim=8, n_groups=2, chunk_size=16,
        n_routed_experts=4, moe_intermediate_size=24, moe_shared_expert_intermediate_size=40, num_experts_per_tok=2,
        routed_scaling_factor=2.5, time_step_min=0.01, bos_token_id=5))


def radio():
    return RadioModel(RadioConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=3.0,
                                  max_img_size=130, image_size=64, num_registers=4, summary_idxs=[0, 2]))


def randomize(model):
    """Fresh weights, so that no two rows are the same and no factor is 1."""
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(i)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.linspace(-0.1, 0.1, buffer.numel()))
    return model


def answer(model):
    model.eval()
    with torch.no_grad():
        if isinstance(model, RadioModel):
            images = torch.rand(2, 3, 48, 64, generator=torch.Generator().manual_seed(1)).to(model.dtype)
            output = model(pixel_values=images)
            return torch.cat([output.summary.flatten(), output.features.flatten()])
        return model(input_ids=torch.arange(40).view(2, 20) % 64).logits


def braid(*arguments):
    return run_program([BRAID, "ckpt", *map(str, arguments)])


def convert(*arguments):
    run = braid(*arguments)
    assert run.returncode == 0, run.stderr
    return run.stdout


def tensors_of(folder):
    """Read by the safetensors package, whatever the number of files."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
        tensors.update(load_file(path))
    return tensors


def assert_same_tensors(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape, name
        assert torch.equal(ours[name].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8)), name


MODELS = pytest.mark.parametrize("make", [nemotron_h, radio])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@MODELS
@DTYPES
@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
def test_there_and_back_changes_nothing(tmp_path, make, dtype, shard_size):
    model = randomize(make()).to(dtype)
    model.save_pretrained(tmp_path / "hf", max_shard_size=shard_size)
    assert (tmp_path / "hf/model.safetensors.index.json").exists() == (shard_size == "20KB")
    assert "tensors" in convert("import", tmp_path / "hf", tmp_path / "braid")
    convert("export", tmp_path / "braid", tmp_path / "back")
    assert_same_tensors(tensors_of(tmp_path / "back"), tensors_of(tmp_path / "hf"))
    assert json.loads((tmp_path / "back/config.json").read_text()) == \
        json.loads((tmp_path / "hf/config.json").read_text())
    theirs = type(model).from_pretrained(tmp_path / "hf", dtype="auto")
    ours, report = type(model).from_pretrained(tmp_path / "back", dtype="auto", output_loading_info=True)
    assert not any(report.values()), report
    assert ours.dtype == dtype
    assert torch.equal(answer(ours), answer(theirs))


@MODELS
@DTYPES
def test_names_of_modules_are_read(tmp_path, make, dtype):
    model = randomize(make()).to(dtype)
    model.save_pretrained(tmp_path / "hf")
    modules = tmp_path / "modules"
    modules.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, modules / "model.safetensors",
              metadata={"format": "pt"})
    (modules / "config.json").write_text((tmp_path / "hf/config.json").read_text())
    assert set(tensors_of(modules)) != set(tensors_of(tmp_path / "hf"))
    convert("import", modules, tmp_path / "braid")
    convert("export", tmp_path / "braid", tmp_path / "back")
    assert_same_tensors(tensors_of(tmp_path / "back"), tensors_of(tmp_path / "hf"))


def test_language_parameters_are_megatrons(tmp_path):
    model = randomize(nemotron_h())
    model.save_pretrained(tmp_path / "hf")
    convert("import", tmp_path / "hf", tmp_path / "braid")
    ours, theirs = tensors_of(tmp_path / "braid"), model.state_dict()
    attention = "model.layers.2.mixer."
    q, k, v = (theirs[attention + f"{part}_proj.weight"].view(2, -1, 32) for part in "qkv")
    assert torch.equal(ours["decoder.layers.2.self_attention.linear_qkv.weight"], torch.cat([q, k, v], 1).view(-1, 32))
    assert torch.equal(ours["decoder.layers.1.mlp.experts.experts.linear_fc1.weight"],
                       theirs["model.layers.1.mixer.experts.up_proj"])
    assert torch.equal(ours["decoder.layers.1.mlp.experts.experts.linear_fc2.weight"],
                       theirs["model.layers.1.mixer.experts.down_proj"])
    assert torch.equal(ours["decoder.layers.0.mixer.in_proj.weight"], theirs["model.layers.0.mixer.in_proj.weight"])
    assert torch.equal(ours["decoder.layers.1.mlp.router.expert_bias"],
                       theirs["model.layers.1.mixer.gate.e_score_correction_bias"])


def test_vision_parameters_are_megatrons(tmp_path):
    model = randomize(radio())
    model.save_pretrained(tmp_path / "hf")
    convert("import", tmp_path / "hf", tmp_path / "braid")
    ours, theirs = tensors_of(tmp_path / "braid"), model.state_dict()
    attention = "encoder.layer.1.attention.attention."
    for kind in ("weight", "bias"):
        parts = [theirs[attention + f"{part}.{kind}"].view(4, 12, -1) for part in ("query", "key", "value")]
        fused = ours[f"decoder.layers.1.self_attention.linear_qkv.{kind}"]
        assert torch.equal(fused, torch.cat(parts, 1).view(fused.shape)), kind
    assert torch.equal(ours["position_embeddings"], theirs["embeddings.position_embedding"])
    assert torch.equal(ours["class_token"], theirs["embeddings.cls_register_token"])
    assert torch.equal(ours["input_conditioner.norm_std"], theirs["input_conditioner.norm_std"])
    assert torch.equal(ours["decoder.layers.0.mlp.layer_scale"], theirs["encoder.layer.0.layer_scale2.lambda1"])


# As published: Python's bare Infinity, older names, no layer scale, code of its own, and parts the model does without.
def test_configs_as_published(tmp_path):
    model = randomize(nemotron_h())
    model.save_pretrained(tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    del config["layers_block_type"], config["n_groups"]
    config.update(hybrid_override_pattern="ME*-M", mamba_n_groups=2, num_hidden_layers=5,
                  time_step_limit=[0.0, float("inf")], auto_map={"AutoConfig": "configuration_nemotron_h.Config"})
    text = json.dumps(config)
    assert "Infinity" in text
    (tmp_path / "hf/config.json").write_text(text)
    weights = tensors_of(tmp_path / "hf")
    weights["mtp.layers.0.norm.weight"] = torch.zeros(32)
    save_file(weights, tmp_path / "hf/model.safetensors", metadata={"format": "pt"})
    convert("import", tmp_path / "hf", tmp_path / "braid")
    convert("export", tmp_path / "braid", tmp_path / "back")
    assert torch.equal(answer(NemotronHForCausalLM.from_pretrained(tmp_path / "back")), answer(model))


def test_radio_without_layer_scale(tmp_path):
    model = randomize(radio())
    for name, parameter in model.named_parameters():
        if name.endswith("lambda1"):
            torch.nn.init.ones_(parameter)
    model.save_pretrained(tmp_path / "hf")
    weights = {name: t for name, t in tensors_of(tmp_path / "hf").items() if not name.endswith("lambda1")}
    save_file(weights, tmp_path / "hf/model.safetensors", metadata={"format": "pt"})
    convert("import", tmp_path / "hf", tmp_path / "braid")
    assert "layer_scale: false" in (tmp_path / "braid/model.yaml").read_text()
    convert("export", tmp_path / "braid", tmp_path / "back")
    assert_same_tensors(tensors_of(tmp_path / "back"), weights)
    assert torch.equal(answer(RadioModel.from_pretrained(tmp_path / "back")), answer(model))


# A model that Braid made itself has no config.json to go back to.
@MODELS
def test_export_without_the_original_config(tmp_path, make):
    model = randomize(make()).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "hf")
    convert("import", tmp_path / "hf", tmp_path / "braid")
    (tmp_path / "braid/hf_config.json").unlink()
    convert("export", tmp_path / "braid", tmp_path / "back")
    back = type(model).from_pretrained(tmp_path / "back", dtype="auto")
    assert back.dtype == torch.bfloat16
    assert torch.equal(answer(back), answer(type(model).from_pretrained(tmp_path / "hf", dtype="auto")))


def test_parts_of_different_dtypes_are_refused(tmp_path):
    randomize(nemotron_h()).save_pretrained(tmp_path / "hf")
    weights = tensors_of(tmp_path / "hf")
    weights["backbone.layers.2.mixer.v_proj.weight"] = weights["backbone.layers.2.mixer.v_proj.weight"].bfloat16()
    save_file(weights, tmp_path / "hf/model.safetensors", metadata={"format": "pt"})
    run = braid("import", tmp_path / "hf", tmp_path / "braid")
    assert run.returncode == 2
    assert "'backbone.layers.2.mixer.v_proj.weight' has dtype BF16" in run.stderr
    assert not (tmp_path / "braid").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    randomize(radio()).save_pretrained(tmp_path / "hf")
    (tmp_path / "braid").mkdir()
    (tmp_path / "braid/notes.txt").write_text("mine")
    run = braid("import", tmp_path / "hf", tmp_path / "braid")
    assert run.returncode == 2 and "is not empty" in run.stderr
    assert [path.name for path in (tmp_path / "braid").iterdir()] == ["notes.txt"]
