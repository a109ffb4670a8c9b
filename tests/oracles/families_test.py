"""The other model families, live: Llama and CLIP against transformers, the audio encoder against the same layers
written in torch. Outputs, the loss and every gradient.

    BRAID_FAMILY_PROBE=build/family_probe python -m pytest tests/oracles/families_test.py
"""

import itertools
import json
import math
import os

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaForCausalLM

from hf_models import GRAD_BAR, LOSS_BAR, OUTPUT_BAR, assert_close, randomise
from programs import run_program

# Where both sides compute in double and sum in other orders.
SAME = 1e-11


def probe(folder, family, config, weights, inputs):
    """weights: by Braid's names."""
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {**{f"weight.{name}": weight for name, weight in weights.items()}, **inputs}
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, folder / "in.st")
    command = [os.path.abspath(os.environ["BRAID_FAMILY_PROBE"]), family, "config.json", "in.st", "out.st"]
    result = run_program(command, cwd=folder)
    assert result.returncode == 0, result.stderr
    return load_file(folder / "out.st")


def assert_same(got, output, loss, grads, output_bar=SAME, loss_bar=SAME, grad_bar=SAME):
    """grads: by Braid's names. All of them, and none of them 0."""
    assert_close("output", got["output"], output.detach().flatten(0, -2), output_bar)
    assert_close("loss", got["loss"], loss.detach(), loss_bar)
    assert sorted(name.removeprefix("grad.") for name in got if name.startswith("grad.")) == sorted(grads)
    for name, grad in grads.items():
        assert_close(name, got[f"grad.{name}"], grad, grad_bar)


def interleaved(q, k, v, kv_heads):
    """Per key/value head: its query heads, the key, the value. The rows of weights, or biases."""
    parts = [x.unflatten(0, (kv_heads, -1)) for x in (q, k, v)]
    return torch.cat(parts, 1).flatten(0, 1)


# --- Llama

LLAMA = dict(hidden_size=32, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=64, rms_norm_eps=1e-4, max_position_embeddings=4096, use_cache=False)


def llama_config(config):
    return dict(layers=config.num_hidden_layers, hidden=config.hidden_size, vocab=config.vocab_size,
                heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, head_dim=config.head_dim,
                ffn=config.intermediate_size, rope_theta=config.rope_parameters["rope_theta"],
                norm_eps=config.rms_norm_eps, tie_embeddings=config.tie_word_embeddings)


def llama_tensors(model, get):
    """get(parameter) of every parameter, under Braid's names and in its shapes."""
    theirs = {name: get(parameter) for name, parameter in model.named_parameters()}
    ours = {"embedding.word_embeddings.weight": theirs["model.embed_tokens.weight"],
            "decoder.final_layernorm.weight": theirs["model.norm.weight"]}
    if not model.config.tie_word_embeddings:
        ours["output_layer.weight"] = theirs["lm_head.weight"]
    for n in range(model.config.num_hidden_layers):
        layer, mine = f"model.layers.{n}.", f"decoder.layers.{n}."
        q, k, v = (theirs[f"{layer}self_attn.{x}_proj.weight"] for x in "qkv")
        ours |= {
            f"{mine}self_attention.linear_qkv.layer_norm_weight": theirs[f"{layer}input_layernorm.weight"],
            f"{mine}self_attention.linear_qkv.weight": interleaved(q, k, v, model.config.num_key_value_heads),
            f"{mine}self_attention.linear_proj.weight": theirs[f"{layer}self_attn.o_proj.weight"],
            f"{mine}mlp.linear_fc1.layer_norm_weight": theirs[f"{layer}post_attention_layernorm.weight"],
            f"{mine}mlp.linear_fc1.weight":
                torch.cat([theirs[f"{layer}mlp.gate_proj.weight"], theirs[f"{layer}mlp.up_proj.weight"]]),
            f"{mine}mlp.linear_fc2.weight": theirs[f"{layer}mlp.down_proj.weight"],
        }
    return ours


def assert_llama_agrees(folder, lengths, **changes):
    """Braid on sequences packed end to end, and transformers on each alone. In single precision: transformers rounds
    norms, angles and attention to that whatever the model's."""
    config = LlamaConfig(**{**LLAMA, **changes})
    config._attn_implementation = "eager"
    model = randomise(LlamaForCausalLM(config), seed=1)
    torch.manual_seed(2)
    offsets = [0, *itertools.accumulate(lengths)]
    ids, labels = (torch.randint(0, config.vocab_size, (offsets[-1],)) for _ in range(2))
    labels[torch.rand(offsets[-1]) < 0.3] = -100
    logits = torch.cat([model(ids[None, a:b]).logits[0] for a, b in itertools.pairwise(offsets)])
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    inputs = {"ids": ids, "labels": labels, "offsets": torch.tensor(offsets)}
    got = probe(folder, "llama", llama_config(config), llama_tensors(model, lambda p: p.data), inputs)
    assert_same(got, logits, loss, llama_tensors(model, lambda p: p.grad), OUTPUT_BAR, LOSS_BAR, GRAD_BAR)


LLAMA_CASES = {
    "two queries per key": {},
    "a key per query": {"num_key_value_heads": 4},
    "one key for all, wide heads": {"num_key_value_heads": 1, "head_dim": 20},
    "slow rotation": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "tied embeddings": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("changes", LLAMA_CASES.values(), ids=LLAMA_CASES)
def test_llama_agrees_with_transformers(changes, tmp_path):
    assert_llama_agrees(tmp_path, [37], **changes)


def test_llama_packed_sequences_do_not_see_each_other(tmp_path):
    assert_llama_agrees(tmp_path, [19, 1, 300, 8])


# --- encoders

def layer_tensors(theirs, mine, norm1, norm2, q, k, v, out, fc1, fc2, heads):
    """theirs(name) is a tensor; the names are those of modules with a weight and a bias."""
    ours = {}
    for kind in ("weight", "bias"):
        get = lambda module: theirs(f"{module}.{kind}")
        ours |= {
            f"{mine}self_attention.linear_qkv.layer_norm_{kind}": get(norm1),
            f"{mine}self_attention.linear_qkv.{kind}": interleaved(get(q), get(k), get(v), heads),
            f"{mine}self_attention.linear_proj.{kind}": get(out),
            f"{mine}mlp.linear_fc1.layer_norm_{kind}": get(norm2),
            f"{mine}mlp.linear_fc1.{kind}": get(fc1),
            f"{mine}mlp.linear_fc2.{kind}": get(fc2),
        }
    return ours


CLIP = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, image_size=28,
            patch_size=7, layer_norm_eps=1e-4)


def clip_tensors(model, layers, get):
    theirs = {name: get(parameter) for name, parameter in model.named_parameters()}
    ours = {"class_token": theirs["embeddings.class_embedding"][None, None],
            "position_embeddings.weight": theirs["embeddings.position_embedding.weight"],
            "conv1.weight": theirs["embeddings.patch_embedding.weight"],
            "ln_pre.weight": theirs["pre_layrnorm.weight"], "ln_pre.bias": theirs["pre_layrnorm.bias"]}
    for n in range(layers):
        names = ("layer_norm1", "layer_norm2", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                 "self_attn.out_proj", "mlp.fc1", "mlp.fc2")
        ours |= layer_tensors(lambda name: theirs[f"encoder.layers.{n}.{name}"], f"decoder.layers.{n}.", *names,
                              heads=model.config.num_attention_heads)
    return ours


def patches_of(pixels, patch):
    """[B, C, H, W] -> patches row by row, each channel by channel."""
    batch, channels, height, width = pixels.shape
    cut = pixels.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(-1, channels * patch * patch)


@pytest.mark.parametrize("act, gelu", [("quick_gelu", "quick"), ("gelu", "erf"), ("gelu_pytorch_tanh", "tanh")])
@pytest.mark.parametrize("feature_layer, layers", [(-2, 3), (-1, 4), (1, 1)])
def test_clip_agrees_with_transformers(act, gelu, feature_layer, layers, tmp_path):
    config = CLIPVisionConfig(**CLIP, hidden_act=act)
    config._attn_implementation = "sdpa"  # in double, where eager attention is in single precision
    model = randomise(CLIPVisionModel(config), seed=3).double()
    torch.manual_seed(4)
    pixels, features_grad = torch.randn(3, 3, 28, 28).double(), torch.randn(3 * 16, 32).double()
    hidden = model(pixels, output_hidden_states=True).hidden_states[feature_layer]
    features = hidden[:, 1:].flatten(0, 1)  # without the class token, as LLaVA takes them
    loss = (features * features_grad).sum()
    loss.backward()
    settings = dict(hidden=32, layers=4, heads=4, ffn=48, feature_layer=feature_layer, image_side=28, patch=7,
                    norm_eps=1e-4, gelu=gelu)
    inputs = {"patches": patches_of(pixels, 7), "features_grad": features_grad}
    got = probe(tmp_path, "clip", settings, clip_tensors(model, layers, lambda p: p.data), inputs)
    assert_same(got, features, loss, clip_tensors(model, layers, lambda p: p.grad))


AUDIO = dict(mels=10, hidden=32, layers=3, heads=4, ffn=48, stack=3, norm_eps=1e-4)


class AudioLayer(nn.Module):
    def __init__(self, hidden, heads, ffn, norm_eps):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, norm_eps) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (linear(y).unflatten(-1, (self.heads, -1)).transpose(0, 1) for linear in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


def sinusoids(length, channels):
    """As Whisper's."""
    scales = torch.exp(-math.log(10000) / (channels // 2 - 1) * torch.arange(channels // 2).double())
    angles = torch.arange(length).double()[:, None] * scales
    return torch.cat([angles.sin(), angles.cos()], 1)


class AudioEncoder(nn.Module):
    def __init__(self, mels, hidden, layers, heads, ffn, stack, norm_eps):
        super().__init__()
        self.stack = stack
        self.embedder = nn.Linear(2 * mels, hidden)
        self.layers = nn.ModuleList(AudioLayer(hidden, heads, ffn, norm_eps) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, norm_eps)

    def forward(self, frames):
        x = F.gelu(self.embedder(frames.unflatten(0, (-1, 2)).flatten(1)))
        x = x + sinusoids(*x.shape)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).unflatten(0, (-1, self.stack)).flatten(1)


def audio_tensors(model, get):
    theirs = {name: get(parameter) for name, parameter in model.named_parameters()}
    ours = {f"embedder.{kind}": theirs[f"embedder.{kind}"] for kind in ("weight", "bias")}
    ours |= {f"decoder.final_layernorm.{kind}": theirs[f"norm.{kind}"] for kind in ("weight", "bias")}
    for n in range(len(model.layers)):
        names = ("norm1", "norm2", "q", "k", "v", "out", "fc1", "fc2")
        ours |= layer_tensors(lambda name: theirs[f"layers.{n}.{name}"], f"decoder.layers.{n}.", *names,
                              heads=AUDIO["heads"])
    return ours


def test_audio_is_its_definition(tmp_path):
    model = randomise(AudioEncoder(**AUDIO), seed=5).double()
    lengths = [24, 6, 60]
    torch.manual_seed(6)
    frames = torch.randn(sum(lengths), AUDIO["mels"]).double()
    features = torch.cat([model(clip) for clip in frames.split(lengths)])
    features_grad = torch.randn_like(features)
    loss = (features * features_grad).sum()
    loss.backward()
    inputs = {"frames": frames, "lengths": torch.tensor(lengths), "features_grad": features_grad}
    got = probe(tmp_path, "audio", AUDIO, audio_tensors(model, lambda p: p.data), inputs)
    assert_same(got, features, loss, audio_tensors(model, lambda p: p.grad))


@pytest.mark.parametrize("family, settings, blamed", [
    ("llama", {"layers": 0}, "layers=0"),
    ("clip", {"feature_layer": 99}, "feature_layer=99"),
    ("audio", {"heads": 3}, "heads=3"),
    ("audio", {"head": 4}, "head"),
])
def test_settings_that_make_no_sense(family, settings, blamed, tmp_path):
    with pytest.raises(AssertionError, match=blamed):
        probe(tmp_path, family, settings, {"class_token": torch.zeros(1)}, {})
