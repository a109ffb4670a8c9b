"""Small random models of transformers, `braid forward` on their files, and how close the two must be.

Default weights are bland (norms of 1, biases of 0), and a bug in what multiplies or adds them would not show: here every
weight is random, at a scale that keeps activations near 1.
"""

import math
import os

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import revert_weight_conversion

from programs import run_program

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

# In fp32 transformers itself is off by up to 1.5e-6 in outputs, 1.2e-7 in losses and 4e-6 in gradients, against the same
# models computed in double precision: the bars are some ten times what rounding does.
OUTPUT_BAR = 2e-5
LOSS_BAR = 1e-6
GRAD_BAR = 5e-5


def uniform(shape, low, high):
    return torch.rand(shape) * (high - low) + low


def random_weight(name, shape):
    kind = name.split(".")[-1]
    if "norm" in name.split(".")[-2] and kind == "weight" or kind == "lambda1":
        return 1 + 0.2 * torch.randn(shape)
    if kind == "A_log":
        return uniform(shape, math.log(0.5), math.log(8))
    if kind == "D":
        return uniform(shape, 0.5, 1.5)
    if kind == "dt_bias":
        return uniform(shape, -4, 0.5)  # time steps between 0.02 and 1
    if "conv1d" in name:
        return uniform(shape, -0.6, 0.6)
    if kind in ("bias", "e_score_correction_bias"):
        return 0.1 * torch.randn(shape)
    if "embeddings." in name and "projection" not in name:
        return 0.7 * torch.randn(shape)  # a token's or a position's vector
    return torch.randn(shape) / math.sqrt(shape[-1])


def randomise(model, seed):
    torch.manual_seed(seed)
    saved = model.state_dict()  # without buffers that follow from the config
    with torch.no_grad():
        for name, weight in list(model.named_parameters()) + list(model.named_buffers()):
            if name in saved and not name.startswith(("input_conditioner", "summary_idxs")):
                weight.copy_(random_weight(name, weight.shape))
    return model.eval()


def gradients(model):
    """By parameter; a parameter that took no part has zeros."""
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def under_both_names(model, grads):
    """Gradients by the names of transformers' parameters and by those of the tensors that the model is saved as."""
    return {**revert_weight_conversion(model, dict(grads)), **grads}


# Of a world of one, which saves the process that would start it. Ports that the system gives to others are above.
ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(30000 + os.getpid() % 2700)}


def run_braid(folder, model_dir, inputs, flags, outputs, env={}):
    """inputs: tensors by name, or the path of a file."""
    if isinstance(inputs, dict):
        save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, folder / "in.safetensors")
        inputs = folder / "in.safetensors"
    command = [os.environ["BRAID"], "forward", model_dir, "--inputs", inputs, "--outputs", outputs]
    return run_program(command + flags.split(), env={**os.environ, **env})


def braid_forward(folder, model_dir, inputs, flags=""):
    has_layout = any(f"--{size}" in flags.split() for size in ("tp", "cp", "ep", "pp", "dp"))
    result = run_braid(folder, model_dir, inputs, flags, folder / "out.safetensors", {} if has_layout else ONE_RANK)
    assert result.returncode == 0, result.stderr
    outputs = load_file(folder / "out.safetensors")
    output = "logits" if "logits" in outputs else "features"
    said = f"wrote {folder / 'out.safetensors'}: {output} {list(outputs[output].shape)}"
    assert result.stdout.startswith(said) and ("loss" in outputs) == (", loss " in result.stdout), result.stdout
    return outputs


def refusal(folder, model_dir, inputs, flags="", outputs=None):
    """What braid says to input that it must refuse."""
    outputs = outputs or folder / "out.safetensors"
    result = run_braid(folder, model_dir, inputs, flags, outputs)
    assert result.returncode == 2, f"exit code {result.returncode}\n{result.stdout}{result.stderr}"
    assert not outputs.exists()
    for crash in ("terminate called", "what():", "Aborted", "Segmentation", ".cpp:"):
        assert crash not in result.stderr
    return result.stderr


def assert_names(message, *parts):
    assert [part for part in parts if part not in message] == [], message


def assert_close(name, got, want, bar):
    """Largest difference against the largest value."""
    assert got.shape == want.shape, f"{name} is {list(got.shape)}, not {list(want.shape)}"
    error = ((got - want).abs().max() / want.abs().max()).item()
    assert error <= bar, f"{name} is off by {error:.2e}, more than {bar:.0e}"


def relative_l2(got, want):
    return ((got - want).norm() / want.norm()).item()


def scale_of(name, grads):
    # A key's bias adds the same to all scores of a query, which softmax ignores: its gradient is 0 but for rounding.
    return grads[name.replace("attention.key.bias", "attention.query.bias")].norm().item()


def assert_same_gradients(outputs, grads, bar=GRAD_BAR):
    got = {name.removeprefix("grad."): tensor for name, tensor in outputs.items() if name.startswith("grad.")}
    assert sorted(got) == sorted(grads)
    shapes = {name: (list(got[name].shape), list(grads[name].shape)) for name in grads}
    assert {name: pair for name, pair in shapes.items() if pair[0] != pair[1]} == {}
    # Where the gradient is 0, so must ours be, but for what rounding leaves of the others'.
    tiny = 1e-6 * max(grad.norm().item() for grad in grads.values())
    errors = {name: (got[name] - grads[name]).norm().item() / max(scale_of(name, grads), tiny) for name in grads}
    # Written so that a NaN is off, too.
    off = {name: f"{error:.2e}" for name, error in errors.items() if not error <= bar}
    assert off == {}, f"gradients off by more than {bar:.0e}"
