"""The peer of bench_gpu: operators of transformers' NemotronH and RADIO as torch.compile makes them, grouped_mm for
experts, and mamba_ssm's Triton scan if that package can be imported; at the sizes of the 20L slice and of RADIO-H, bf16.

Prints one line of JSON: milliseconds by the name that bench_gpu gives the operator.
"""

import argparse
import importlib.util
import json
import statistics

import torch
import torch.nn.functional as F
from llm_slice_peer import shifted_conv

TOKENS, HIDDEN, EXPERTS, TOP_K, FFN, SHARED, VOCAB = 8192, 2688, 16, 6, 1856, 3712, 131072
INNER, CONV, GROUPS, HEADS, STATE, CHUNK = 4096, 6144, 8, 64, 128, 128
RADIO_TOKENS, RADIO_HIDDEN = 8 * 1034, 1280
WARM_UP, REPEATS = 3, 20
EPS = 1e-5


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def rms_norm(x, weight):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)


def add_rms_norm(x, branch, weight):
    total = x + branch
    return rms_norm(total, weight), total


def gated_rms_norm(y, z, weight):
    gated = (y.float() * F.silu(z.float())).unflatten(-1, (GROUPS, -1))
    return weight * (gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + EPS)).flatten(-2).to(y.dtype)


def add_layer_norm(x, branch, weight, bias):
    total = x + branch
    return F.layer_norm(total, (RADIO_HIDDEN,), weight, bias), total


def squared_relu(x):
    return F.relu(x).square()


def unpermute(rows, slots, shared):
    return rows[slots].view(TOKENS, TOP_K, HIDDEN).sum(1) + shared


def random_slots():
    experts = torch.randn(TOKENS, EXPERTS, device="cuda").topk(TOP_K, 1).indices.flatten()
    order = experts.argsort(stable=True)
    ends = experts.bincount(minlength=EXPERTS).cumsum(0).to(torch.int32)
    return order, order.argsort(), ends


def compiled_operators():
    """Name -> function and arguments."""
    order, inverse, _ = random_slots()
    tokens = random(TOKENS, HIDDEN)
    vision, norm = random(RADIO_TOKENS, RADIO_HIDDEN), (random(RADIO_HIDDEN), random(RADIO_HIDDEN))
    labels = torch.randint(VOCAB, (TOKENS,), device="cuda")
    return {
        "squared_relu": (squared_relu, random(TOKENS, SHARED)),
        "scaled_squared_relu": (
            lambda x, scale: squared_relu(x) * scale[:, None].to(x.dtype),
            random(TOP_K * TOKENS, FFN), torch.rand(TOP_K * TOKENS, device="cuda", requires_grad=True)),
        "gelu tanh, RADIO": (lambda x: F.gelu(x, approximate="tanh"), random(RADIO_TOKENS, 4 * RADIO_HIDDEN)),
        "cross_entropy": (lambda x: F.cross_entropy(x.float(), labels, reduction="sum"), random(TOKENS, VOCAB)),
        "embedding": (lambda weight: F.embedding(labels, weight), random(VOCAB, HIDDEN)),
        "causal_conv_silu": (
            lambda x, weight, bias: shifted_conv(x.transpose(1, 2), weight, bias).transpose(1, 2),
            random(1, TOKENS, CONV), random(CONV, 4), random(CONV)),
        "gated_rms_norm": (gated_rms_norm, random(TOKENS, INNER), random(TOKENS, INNER), random(INNER)),
        "permute": (lambda x: x[order // TOP_K], tokens),
        "unpermute, shared expert added": (
            lambda rows, shared: unpermute(rows, inverse, shared), random(TOP_K * TOKENS, HIDDEN), tokens),
        "rms_norm": (rms_norm, tokens, random(HIDDEN)),
        "add_rms_norm": (add_rms_norm, tokens, random(TOKENS, HIDDEN), random(HIDDEN)),
        "layer_norm, RADIO": (lambda x, w, b: F.layer_norm(x, (RADIO_HIDDEN,), w, b), vision, *norm),
        "add_layer_norm, RADIO": (add_layer_norm, vision, random(RADIO_TOKENS, RADIO_HIDDEN), *norm),
    }  # fmt: skip


def median_ms(prepare, run):
    """Of run(prepare()); a product is queued before it, so that the host is ahead of the GPU."""
    busy = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    times_ms = []
    for i in range(-WARM_UP, REPEATS):
        prepared = prepare()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        busy @ busy
        begin.record()
        run(prepared)
        end.record()
        end.synchronize()
        if i >= 0:
            times_ms.append(begin.elapsed_time(end))
    return statistics.median(times_ms)


def measure_operator(name, function, inputs):
    def forward():
        result = function(*inputs)
        return result if isinstance(result, tuple) else (result,)

    grads = [torch.randn_like(y) for y in forward()]
    trained = [x for x in inputs if x.requires_grad]
    return {
        name: median_ms(lambda: None, lambda _: forward()),
        name + " backward": median_ms(forward, lambda results: torch.autograd.grad(results, trained, grads)),
    }


def measure_products():
    *_, ends = random_slots()
    rows, inner = random(TOP_K * TOKENS, HIDDEN).detach(), random(TOP_K * TOKENS, FFN).detach()
    fc1, fc2 = random(EXPERTS, FFN, HIDDEN).detach(), random(EXPERTS, HIDDEN, FFN).detach()
    products = {
        "experts' fc1": lambda _: torch._grouped_mm(rows, fc1.transpose(1, 2), ends),
        "experts' fc2": lambda _: torch._grouped_mm(inner, fc2.transpose(1, 2), ends),
        "experts' dx": lambda _: torch._grouped_mm(inner, fc1, ends),
        "experts' dW": lambda _: torch._grouped_mm(inner.t(), rows, ends),
    }
    return {name: median_ms(lambda: None, run) for name, run in products.items()}


def measure_scan():
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    mixed, dt = random(1, TOKENS, CONV), random(1, TOKENS, HEADS)
    x, b, c = mixed.split([INNER, GROUPS * STATE, GROUPS * STATE], -1)
    x, b, c = (part.unflatten(-1, (heads, -1)) for part, heads in ((x, HEADS), (b, GROUPS), (c, GROUPS)))
    a, d, bias = (torch.randn(HEADS, device="cuda") for _ in range(3))
    scan = lambda: mamba_chunk_scan_combined(x, dt, -a.exp(), b, c, CHUNK, D=d, dt_bias=bias, dt_softplus=True)  # noqa: E731
    grad = torch.randn_like(scan())
    return {
        "ssd_scan": median_ms(lambda: None, lambda _: scan()),
        "ssd_scan backward": median_ms(scan, lambda y: torch.autograd.grad(y, (mixed, dt), grad)),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", default="", help="only operators whose name contains this")
    part = parser.parse_args().part
    torch.manual_seed(1)
    times_ms = {}
    for name, (function, *inputs) in compiled_operators().items():
        if part in name + " backward":
            torch._dynamo.reset()
            times_ms |= measure_operator(name, torch.compile(function), inputs)
    if part in "experts' fc1 experts' fc2 experts' dx experts' dW":
        times_ms |= measure_products()
    if part in "ssd_scan backward" and importlib.util.find_spec("mamba_ssm"):
        times_ms |= measure_scan()
    print(json.dumps(times_ms))


if __name__ == "__main__":
    main()
