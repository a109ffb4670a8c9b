"""The hybrid language model against transformers' NemotronHForCausalLM, live: logits, loss and every gradient.

    BRAID=build/braid python -m pytest tests/oracles/nemotron_h_test.py
"""

import itertools
import json
import shutil
import struct
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import NemotronHConfig, NemotronHForCausalLM

from hf_models import (GRAD_BAR, LOSS_BAR, OUTPUT_BAR, assert_close, assert_names, assert_same_gradients,
                       braid_forward, gradients, randomise, refusal, relative_l2, under_both_names)

VOCAB = 64
SIZES = dict(
    vocab_size=VOCAB, hidden_size=32, layer_norm_epsilon=1e-4, use_cache=False,
    num_attention_heads=4, num_key_value_heads=2, head_dim=12,
    mamba_num_heads=8, mamba_head_dim=6, n_groups=2, ssm_state_size=10, chunk_size=16,
    intermediate_size=48,
    n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=20, moe_shared_expert_intermediate_size=28,
    routed_scaling_factor=2.5,
    # transformers clamps the time step to (time_step_min, inf) and never reads time_step_limit. No time step here is
    # that small, so both mean the same.
    time_step_min=1e-6,
)
MIXED = "ME*-M*E"

# A token's k-th and k+1-st expert must be further apart than rounding can move them.
ROUTING_MARGIN = 1e-4


@dataclass
class Case:
    name: str
    pattern: str
    batch: int
    length: int
    config: dict = field(default_factory=dict)


CASES = [
    Case("mamba", "MM", 1, 37, {"n_groups": 1}),
    Case("mamba 2 groups, whole chunk", "MM", 3, 16, {"n_groups": 2}),
    Case("mamba 4 groups, whole chunks", "MM", 1, 64, {"n_groups": 4}),
    Case("mamba 3 taps without bias", "MM", 3, 15, {"use_conv_bias": False, "conv_kernel": 3}),
    Case("attention", "**", 3, 37, {"num_key_value_heads": 4}),
    Case("attention, 2 queries per key", "**", 1, 64, {"num_key_value_heads": 2, "head_dim": 8}),
    Case("attention, 4 queries per key", "**", 1, 15, {"num_key_value_heads": 1}),
    Case("experts", "EE", 3, 37),
    Case("experts, weights as they are", "EE", 1, 37, {"norm_topk_prob": False}),
    Case("experts, one per token", "EE", 1, 16, {"num_experts_per_tok": 1, "norm_topk_prob": False}),
    Case("experts, all of them", "EE", 1, 15, {"num_experts_per_tok": 8, "routed_scaling_factor": 1.0}),
    Case("mlp", "--", 3, 37),
    Case("mixed", MIXED, 3, 37),
    Case("mixed, 15 tokens", MIXED, 1, 15),
    Case("mixed, 16 tokens", MIXED, 3, 16),
    Case("mixed, 64 tokens", MIXED, 1, 64),
]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """models(pattern, **config) is a model and the folder that it is saved in."""
    made = {}

    def get(pattern, **config):
        key = json.dumps([pattern, config])
        if key not in made:
            config = NemotronHConfig(hybrid_override_pattern=pattern, **{**SIZES, **config})
            config._attn_implementation = config._experts_implementation = "eager"
            model = randomise(NemotronHForCausalLM(config), seed=len(made))
            folder = tmp_path_factory.mktemp("nemotron_h")
            model.save_pretrained(folder)
            made[key] = model, folder
        return made[key]

    return get


def random_inputs(seed, batch, length, cu_seqlens=None):
    """Labels are hidden in some places, and the more so, the later the row: no two rows count the same."""
    torch.manual_seed(seed)
    inputs = {"input_ids": torch.randint(0, VOCAB, (batch, length))}
    hidden = torch.rand(batch, length) < torch.linspace(0.1, 0.6, batch)[:, None]
    if length > 1:  # no token follows a single one
        inputs["labels"] = torch.randint(0, VOCAB, (batch, length)).masked_fill(hidden, -100)
    if cu_seqlens:
        inputs["cu_seqlens"] = torch.tensor(cu_seqlens, dtype=torch.int32)
    return inputs


def packed_forward(model, input_ids, labels, cu_seqlens):
    """Each sequence on its own. The loss is the mean over all tokens that count."""
    logits, total, count = [], 0, 0
    for begin, end in itertools.pairwise(cu_seqlens.tolist()):
        logits.append(model(input_ids=input_ids[:, begin:end]).logits)
        targets = labels[0, begin + 1 : end]
        total = total + F.cross_entropy(logits[-1][0, :-1], targets, ignore_index=-100, reduction="sum")
        count += (targets != -100).sum()
    return torch.cat(logits, 1), total / count


def transformers_forward(model, inputs):
    """Logits, loss and gradients under all their names, as braid writes them, and the smallest routing margin."""
    margins = [torch.inf]

    def watch(gate, _, output):
        scores = (output[0].sigmoid() + gate.e_score_correction_bias).sort(descending=True).values
        if gate.top_k < gate.num_experts:
            margins.append((scores[:, gate.top_k - 1] - scores[:, gate.top_k]).min().item())

    hooks = [m.register_forward_hook(watch) for n, m in model.named_modules() if n.endswith("mixer.gate")]
    model.zero_grad()
    if "cu_seqlens" in inputs:
        logits, loss = packed_forward(model, **inputs)
    else:
        output = model(**inputs)
        logits, loss = output.logits, output.loss
    for hook in hooks:
        hook.remove()
    if loss is None:
        return {"logits": logits.detach()}, {}, min(margins)
    loss.backward()
    return {"logits": logits.detach(), "loss": loss.detach()}, under_both_names(model, gradients(model)), min(margins)


def well_routed(model, batch, length, cu_seqlens=None):
    """Inputs, what transformers makes of them, and the gradients."""
    for seed in range(100):
        inputs = random_inputs(seed, batch, length, cu_seqlens)
        outputs, grads, margin = transformers_forward(model, inputs)
        if margin > ROUTING_MARGIN:
            return inputs, outputs, grads
    raise AssertionError("every input has a token that rounding could route elsewhere")


def assert_same(got, outputs, grads, output_bar=OUTPUT_BAR, loss_bar=LOSS_BAR, grad_bar=GRAD_BAR):
    assert_close("logits", got["logits"], outputs["logits"], output_bar)
    if "loss" in outputs:
        assert_close("loss", got["loss"], outputs["loss"], loss_bar)
    assert_same_gradients(got, grads, grad_bar)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_transformers(case, models, tmp_path):
    model, folder = models(case.pattern, **case.config)
    inputs, outputs, grads = well_routed(model, case.batch, case.length)
    assert_same(braid_forward(tmp_path, folder, inputs, "--grads"), outputs, grads)


@pytest.mark.parametrize("batch", [1, 3])
def test_single_tokens(batch, models, tmp_path):
    model, folder = models(MIXED)
    inputs, outputs, _ = well_routed(model, batch, 1)
    got = braid_forward(tmp_path, folder, inputs)
    assert_close("logits", got["logits"], outputs["logits"], OUTPUT_BAR)


@pytest.mark.parametrize("shortest", [0.05, 0.3])
def test_time_steps_are_clamped_as_transformers_does(shortest, models, tmp_path):
    """transformers clamps to [time_step_min, inf) and ignores time_step_limit."""
    model, folder = models("MM", time_step_min=shortest)
    inputs, outputs, grads = well_routed(model, 1, 37)
    assert_same(braid_forward(tmp_path, folder, inputs, "--grads"), outputs, grads)


def test_without_labels_there_is_no_loss(models, tmp_path):
    model, folder = models(MIXED)
    inputs, outputs, _ = well_routed(model, 3, 37)
    got = braid_forward(tmp_path, folder, {"input_ids": inputs["input_ids"]})
    assert list(got) == ["logits"]
    assert_close("logits", got["logits"], outputs["logits"], OUTPUT_BAR)


def test_recompute_changes_nothing(models, tmp_path):
    model, folder = models(MIXED)
    inputs, outputs, grads = well_routed(model, 3, 37)
    assert_same(braid_forward(tmp_path, folder, inputs, "--grads --recompute"), outputs, grads)


@pytest.mark.parametrize("pattern, cu_seqlens", [
    ("MM", [0, 5, 37]), ("MM", [0, 16, 32]), ("**", [0, 21, 37]), (MIXED, [0, 21, 37]), (MIXED, [0, 1, 17, 53, 55])])
def test_packed_sequences_do_not_see_each_other(pattern, cu_seqlens, models, tmp_path):
    model, folder = models(pattern)
    inputs, outputs, grads = well_routed(model, 1, cu_seqlens[-1], cu_seqlens)
    assert_same(braid_forward(tmp_path, folder, inputs, "--grads"), outputs, grads)


def test_packed_sequences_split_over_context(models, tmp_path):
    model, folder = models(MIXED)
    inputs, outputs, grads = well_routed(model, 1, 64, [0, 19, 48, 64])
    assert_same(braid_forward(tmp_path, folder, inputs, "--grads --cp 2"), outputs, grads)


def test_checkpoint_as_released(models, tmp_path):
    """In shards and bfloat16, with a layer pattern instead of a list, and infinity as Python's json writes it."""
    model, _ = models(MIXED)
    folder = tmp_path / "released"
    model = NemotronHForCausalLM(model.config).eval()
    randomise(model, seed=100).to(torch.bfloat16)
    for name, buffer in model.named_buffers():  # the expert bias stays in float32
        buffer.data = buffer.float()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").exists()
    config = json.loads((folder / "config.json").read_text())
    del config["layers_block_type"]
    config |= {"hybrid_override_pattern": MIXED, "num_hidden_layers": len(MIXED), "time_step_limit": [0.0, torch.inf]}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    inputs, outputs, grads = well_routed(model.float(), 3, 37)
    assert_same(braid_forward(tmp_path, folder, inputs, "--grads"), outputs, grads)


def test_bfloat16(models, tmp_path):
    """Each of some dozen roundings on the way from embedding to logits is 2^-9 at most, independent of the others: 1% in
    all, give or take what the layers amplify. All experts are used, as rounding would choose others."""
    model, folder = models(MIXED, num_experts_per_tok=8)
    inputs, outputs, _ = well_routed(model, 3, 37)
    got = braid_forward(tmp_path, folder, inputs, "--dtype bfloat16")
    assert 1e-4 < relative_l2(got["logits"].float(), outputs["logits"]) < 5e-2
    assert_close("loss", got["loss"].float(), outputs["loss"], 5e-2)


LAYOUTS = [
    "--tp 2",
    "--tp 2 --sequence-parallel",
    "--tp 2 --expt-tp 2",
    "--cp 2",
    "--ep 2 --dp 2",
    "--pp 2",
    "--tp 2 --ep 2 --pp 2 --dp 2",
]


@pytest.fixture(scope="module")
def layout_case(models, tmp_path_factory):
    """Four rows of 64 tokens; what transformers makes of them, and braid on one rank in double precision."""
    model, folder = models(MIXED)
    inputs, outputs, grads = well_routed(model, 4, 64)
    one_rank = braid_forward(tmp_path_factory.mktemp("one_rank"), folder, inputs, "--grads --dtype float64")
    return folder, inputs, outputs, grads, one_rank


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_agree_with_transformers(layout, layout_case, tmp_path):
    folder, inputs, outputs, grads, _ = layout_case
    assert_same(braid_forward(tmp_path, folder, inputs, f"--grads {layout}"), outputs, grads)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_agree_with_one_rank(layout, layout_case, tmp_path):
    folder, inputs, _, _, one_rank = layout_case
    got = braid_forward(tmp_path, folder, inputs, f"--grads --dtype float64 {layout}")
    assert {tensor.dtype for tensor in got.values()} == {torch.float64}
    grads = {name.removeprefix("grad."): tensor for name, tensor in one_rank.items() if name.startswith("grad.")}
    assert_same(got, one_rank, grads, output_bar=1e-10, loss_bar=1e-10, grad_bar=1e-10)


def test_double_precision_agrees_with_transformers(layout_case):
    _, _, outputs, grads, one_rank = layout_case
    assert_same(one_rank, outputs, grads)


# What must be refused.

SOUND = {"input_ids": torch.arange(20).reshape(1, 20), "labels": torch.arange(20).reshape(1, 20)}


@pytest.fixture
def copy(models, tmp_path):
    """A sound model to damage."""
    return shutil.copytree(models(MIXED)[1], tmp_path / "model")


def edit_config(folder, removed=(), **changes):
    config = json.loads((folder / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in removed}
    (folder / "config.json").write_text(json.dumps(config | changes))


def cut(path, bytes_less):
    path.write_bytes(path.read_bytes()[:-bytes_less])


def test_what_is_sound_is_accepted(copy, tmp_path):
    edit_config(copy, removed=["layers_block_type"], hybrid_override_pattern=MIXED)
    braid_forward(tmp_path, copy, SOUND)


def test_all_tensors_that_do_not_fit_are_named(copy, tmp_path):
    tensors = load_file(copy / "model.safetensors")
    missing, misshaped = "backbone.layers.0.mixer.A_log", "backbone.layers.2.mixer.q_proj.weight"
    del tensors[missing]
    tensors[misshaped] = tensors[misshaped][:-1].contiguous()
    tensors["backbone.layers.7.norm.weight"] = torch.ones(32)
    save_file(tensors, copy / "model.safetensors")
    message = refusal(tmp_path, copy, SOUND)
    assert_names(message, missing, misshaped, "[47, 32]", "[48, 32]", "backbone.layers.7.norm.weight")


def test_truncated_model(copy, tmp_path):
    cut(copy / "model.safetensors", 100)
    assert_names(refusal(tmp_path, copy, SOUND), str(copy / "model.safetensors"))


def test_truncated_inputs(copy, tmp_path):
    save_file(SOUND, tmp_path / "cut.safetensors")
    cut(tmp_path / "cut.safetensors", 8)
    assert_names(refusal(tmp_path, copy, tmp_path / "cut.safetensors"), str(tmp_path / "cut.safetensors"))


@pytest.mark.parametrize("length", [7, 1 << 40, (1 << 64) - 1])
def test_wrong_header_length(length, copy, tmp_path):
    path = copy / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    assert_names(refusal(tmp_path, copy, SOUND), str(path), "header")


def test_unknown_dtype(copy, tmp_path):
    path = copy / "model.safetensors"
    data = path.read_bytes()
    at = data.index(b'"F32"', data.index(b'"backbone.norm_f.weight"'))
    path.write_bytes(data[:at] + b'"F31"' + data[at + 5 :])
    assert_names(refusal(tmp_path, copy, SOUND), "backbone.norm_f.weight", "F31")


def test_unsupported_settings_are_all_named(copy, tmp_path):
    edit_config(copy, attention_bias=True, moe_latent_size=16)
    assert_names(refusal(tmp_path, copy, SOUND), "config.json", "attention_bias", "moe_latent_size")


def test_unknown_layer(copy, tmp_path):
    edit_config(copy, removed=["layers_block_type"], hybrid_override_pattern="ME*XM*E")
    assert_names(refusal(tmp_path, copy, SOUND), "'X'", "position 4", "ME*XM*E")


def test_unknown_model_type(copy, tmp_path):
    edit_config(copy, model_type="nemotron_x")
    assert_names(refusal(tmp_path, copy, SOUND), "nemotron_x", "nemotron_h", "radio")


def test_missing_model(tmp_path):
    assert_names(refusal(tmp_path, tmp_path / "nowhere", SOUND), str(tmp_path / "nowhere"))


def test_tp_that_does_not_divide(copy, tmp_path):
    assert_names(refusal(tmp_path, copy, SOUND, "--tp 3"), "tp=3", "use tp=2")


BAD_INPUTS = {
    "no input_ids": ({"labels": SOUND["labels"]}, ["input_ids"]),
    "input_ids of floats": ({"input_ids": torch.ones(1, 20)}, ["input_ids", "F32"]),
    "input_ids of three dimensions": ({"input_ids": torch.ones(2, 2, 5).long()}, ["input_ids", "[2, 2, 5]"]),
    "input_ids beyond the vocabulary": ({"input_ids": torch.tensor([[1, 2, VOCAB]])}, ["input_ids", "64"]),
    "negative input_ids": ({"input_ids": torch.tensor([[1, -2, 3]])}, ["input_ids", "-2"]),
    "labels beyond the vocabulary": ({**SOUND, "labels": SOUND["labels"] + 45}, ["labels", "64", "-100"]),
    "negative labels": ({**SOUND, "labels": SOUND["labels"] - 2}, ["labels", "-2", "-100"]),
    "labels of another shape": ({**SOUND, "labels": torch.zeros(1, 19).long()}, ["labels", "[1, 19]", "[1, 20]"]),
    "cu_seqlens that end early": ({**SOUND, "cu_seqlens": torch.tensor([0, 7, 19])}, ["cu_seqlens", "19", "20"]),
    "cu_seqlens that fall": ({**SOUND, "cu_seqlens": torch.tensor([0, 9, 7, 20])}, ["cu_seqlens"]),
    "cu_seqlens that begin late": ({**SOUND, "cu_seqlens": torch.tensor([3, 9, 20])}, ["cu_seqlens"]),
}


@pytest.mark.parametrize("inputs, parts", BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_inputs(inputs, parts, copy, tmp_path):
    assert_names(refusal(tmp_path, copy, inputs), *parts)


def test_bad_inputs_for_several_ranks(copy, tmp_path):
    message = refusal(tmp_path, copy, {"input_ids": torch.tensor([[1, 2, VOCAB, 3]])}, "--tp 2")
    assert_names(message, "input_ids", "64")


def test_missing_inputs_file(copy, tmp_path):
    assert_names(refusal(tmp_path, copy, tmp_path / "nowhere.safetensors"), str(tmp_path / "nowhere.safetensors"))


def test_missing_outputs_folder(copy, tmp_path):
    elsewhere = tmp_path / "nowhere" / "out.safetensors"
    assert_names(refusal(tmp_path, copy, SOUND, outputs=elsewhere), str(tmp_path / "nowhere"))
