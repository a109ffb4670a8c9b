"""The peer of bench_llm_slice: the same model, sequence and dtype in Hugging Face transformers, forward + backward.

    python3 bench/llm_slice_peer.py            compiled, attention on the causal cuDNN path: the strong peer
    python3 bench/llm_slice_peer.py --eager    what a user gets who sets nothing
    python3 bench/llm_slice_peer.py --tiny     a toy model, on a CPU too

Prints one line of JSON: the fastest of the peer's ways to compute Mamba's state space scan, whose name is in "scan".
"ways" has the milliseconds of each.
    kernels   mamba_ssm's Triton kernels, if that package can be imported
    matmul    this file's chunked scan out of matrix products
    torch     transformers as it is: with mamba_ssm its fused kernels, else products and sums of broadcast tensors, which
              it warns is much slower; the only way of --eager
The first two compute the convolution as a sum of shifted products, which compiles into one kernel; transformers' own
convolution without the package causal_conv1d takes several times as long as everything else together.
"""

import argparse
import contextlib
import gc
import importlib.util
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import NemotronHConfig, NemotronHForCausalLM
from transformers.models.nemotron_h import modeling_nemotron_h

WARM_UP = 3

SLICE = dict(
    hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*", hidden_size=2688, vocab_size=131072, initializer_range=0.0173,
    num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    mamba_num_heads=64, mamba_head_dim=64, n_groups=8, ssm_state_size=128, conv_kernel=4, chunk_size=128,
    n_routed_experts=16, num_experts_per_tok=6, moe_intermediate_size=1856,
    moe_shared_expert_intermediate_size=3712, routed_scaling_factor=2.5)  # fmt: skip

# The language model of the provider tiny-vlm.
TINY = dict(
    hybrid_override_pattern="M*E-M*E", hidden_size=64, vocab_size=512, initializer_range=0.02, intermediate_size=128,
    num_attention_heads=16, num_key_value_heads=8, head_dim=8,
    mamba_num_heads=16, mamba_head_dim=8, n_groups=8, ssm_state_size=16, conv_kernel=4, chunk_size=16,
    n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
    moe_shared_expert_intermediate_size=64, routed_scaling_factor=2.5)  # fmt: skip


def parse_arguments():
    parser = argparse.ArgumentParser(description="Time NemotronH of transformers on the 20L slice.")
    parser.add_argument("--sequence", type=int, help="tokens (default 8192; 128 with --tiny)")
    parser.add_argument("--experts", type=int)
    parser.add_argument("--layers", help="pattern of M * E -")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    parser.add_argument("--eager", action="store_true", help="no torch.compile, transformers' default attention")
    parser.add_argument("--optimizer", action="store_true", help="also time the step with clipping and fused AdamW")
    parser.add_argument("--scan", choices=["fastest", "kernels", "matmul", "torch"], default="fastest")
    return parser.parse_args()


def matmul_scan(x, dt, A, B, C, chunk_size, D=None, dt_bias=None, dt_limit=(0.0, float("inf")), **_):
    """mamba2_chunk_scan of transformers as matrix products in the model's dtype; decays are fp32.

    b batch, n chunks, i and j positions in a chunk, g groups, r heads of a group, p head dim, s state
    """
    batch, length, heads, head_dim = x.shape
    groups = B.shape[2]
    assert length % chunk_size == 0, "the sequence must be whole chunks"
    per_head = (batch, length // chunk_size, chunk_size, groups, heads // groups)
    per_group = (batch, length // chunk_size, chunk_size, groups, -1)
    dt = F.softplus(dt.float() + dt_bias.float()).clamp(*dt_limit)
    decay = (dt * A).view(per_head).cumsum(2)  # b n i g r
    steps = x.view(*per_head, head_dim)
    inputs = (steps * dt.view(per_head)[..., None]).to(x.dtype)
    B, C = B.reshape(per_group), C.reshape(per_group)

    by_head = decay.permute(0, 1, 3, 4, 2)  # b n g r i
    later = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=x.device).triu(1)
    within = (by_head[..., :, None] - by_head[..., None, :]).masked_fill(later, -torch.inf).exp()
    weights = torch.einsum("bnigs,bnjgs->bngij", C, B)[:, :, :, None] * within
    y = torch.einsum("bngrij,bnjgrp->bnigrp", weights.to(x.dtype), inputs)

    to_end = (decay[:, :, -1:] - decay).exp()
    states = torch.einsum("bnjgs,bnjgrp->bngrps", B, (inputs * to_end[..., None]).to(x.dtype)).float()
    total = decay[:, :, -1].cumsum(1).permute(0, 2, 3, 1)  # b g r n: decay up to the end of each chunk
    before = F.pad(total, (1, 0))[..., :-1]
    not_earlier = torch.ones(per_head[1], per_head[1], dtype=torch.bool, device=x.device).triu()
    carried = (before[..., :, None] - total[..., None, :]).masked_fill(not_earlier, -torch.inf).exp()
    entering = torch.einsum("bgrnm,bmgrps->bngrps", carried, states)
    y = y + torch.einsum("bnigs,bngrps->bnigrp", C, entering.to(x.dtype)) * decay.exp()[..., None]
    return (y + steps * D.view(groups, -1)[..., None]).reshape(x.shape)


def kernel_scan(x, dt, A, B, C, chunk_size, D=None, dt_bias=None, dt_limit=(0.0, float("inf")), **_):
    """mamba2_chunk_scan of transformers by mamba_ssm's Triton kernels."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    return mamba_chunk_scan_combined(
        x, dt, A, B, C, chunk_size, D=D, dt_bias=dt_bias, dt_softplus=True, dt_limit=dt_limit
    )


def shifted_conv(hidden_states, weight, bias=None, **_):
    """causal_conv1d_fn of transformers with SiLU: [batch, channels, length], one weight per channel and tap."""
    taps, length = weight.shape[-1], hidden_states.shape[-1]
    padded = F.pad(hidden_states, (taps - 1, 0))
    total = sum(padded[..., tap : tap + length].float() * weight[:, tap : tap + 1].float() for tap in range(taps))
    return F.silu(total if bias is None else total + bias.float()[:, None]).to(hidden_states.dtype)


def scans_to_try(arguments):
    if arguments.scan != "fastest":
        return [arguments.scan]
    if arguments.eager:
        return ["torch"]
    return ["matmul"] + (["kernels"] if importlib.util.find_spec("mamba_ssm") else [])


def use_scan(name):
    if name == "torch":
        return
    modeling_nemotron_h.mamba2_split_conv1d_scan_combined = lambda *_, **__: None  # "take the separate steps"
    modeling_nemotron_h.causal_conv1d_fn = shifted_conv
    modeling_nemotron_h.mamba2_chunk_scan = {"matmul": matmul_scan, "kernels": kernel_scan}[name]


def make_model(arguments, device):
    sizes = dict(TINY if arguments.tiny else SLICE)
    if arguments.experts:
        sizes["n_routed_experts"] = arguments.experts
    if arguments.layers:
        sizes["hybrid_override_pattern"] = arguments.layers
    config = NemotronHConfig(**sizes, use_cache=False, max_position_embeddings=1 << 20)
    with torch.device(device):
        model = NemotronHForCausalLM._from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa", experts_implementation="grouped_mm"
        )
    return model.train()


def make_step(model, ids, arguments):
    """forward + backward; returns the mean loss."""
    run = model if arguments.eager else torch.compile(model)
    # Under torch.compile transformers would build a dense [S, S] mask, which keeps attention off the causal kernels.
    # A dict of masks is used unchanged, and None in it means is_causal=True.
    masks = None if arguments.eager else {"full_attention": None, "linear_attention": None}

    def step():
        model.zero_grad(set_to_none=True)
        loss = run(input_ids=ids, attention_mask=masks, labels=ids, use_cache=False).loss
        loss.backward()
        return loss.detach()

    return step


def with_optimizer(model, step):
    """The step, the gradients' norm, clipping, and AdamW on an fp32 copy of the parameters."""
    parameters = list(model.parameters())
    main = [p.detach().float() for p in parameters]
    adam = torch.optim.AdamW(main, lr=1e-5, weight_decay=0.1, fused=True)

    def training_step():
        loss = step()
        for copy, parameter in zip(main, parameters):
            copy.grad = parameter.grad.float()
        torch.nn.utils.clip_grad_norm_(main, 1.0, foreach=True)
        adam.step()
        with torch.no_grad():
            torch._foreach_copy_(parameters, main)
        return loss

    return training_step


def measure(step, repeats, device):
    """The median milliseconds, and the last loss."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(WARM_UP):
        loss = step()
    synchronize()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times_ms = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        synchronize()
        times_ms.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times_ms), loss.item()


def measure_scan(scan, arguments, device, sequence):
    use_scan(scan)
    torch._dynamo.reset()
    torch.manual_seed(1)
    model = make_model(arguments, device)
    ids = torch.randint(model.config.vocab_size, (1, sequence), device=device)
    # cuDNN must be the only choice both when attention is traced and when it runs.
    forced = device == "cuda" and not arguments.eager
    attention = sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if forced else contextlib.nullcontext()
    with attention:
        step = make_step(model, ids, arguments)
        ms, loss = measure(step, arguments.repeats, device)
        peak_gb = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None
        ms_with_optimizer = None
        if arguments.optimizer:
            ms_with_optimizer, _ = measure(with_optimizer(model, step), arguments.repeats, device)
    return dict(
        ms_forward_backward=ms, ms_with_optimizer=ms_with_optimizer, tokens_per_s=sequence / ms * 1e3, peak_gb=peak_gb,
        loss=loss, scan=scan, compiled=not arguments.eager,
        parameters=sum(p.numel() for p in model.parameters()))  # fmt: skip


def main():
    arguments = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not arguments.tiny:
        raise SystemExit("no GPU is visible; --tiny runs on a CPU")
    sequence = arguments.sequence or (128 if arguments.tiny else 8192)
    results = []
    for scan in scans_to_try(arguments):
        results.append(measure_scan(scan, arguments, device, sequence))
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    fastest = min(results, key=lambda result: result["ms_forward_backward"])
    ways = {result["scan"]: result["ms_forward_backward"] for result in results}
    print(json.dumps(fastest | {"ways": ways}))


if __name__ == "__main__":
    main()
