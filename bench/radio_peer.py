"""The peer of bench_radio: RadioModel of transformers at the size of RADIO-H, 8 images of 512 x 512 pixels, bf16, compiled.

Prints one line of JSON.
"""

import argparse
import json
import statistics
import time

import torch
from transformers import RadioConfig, RadioModel

WARM_UP = 3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    config = RadioConfig(
        hidden_size=1280, num_hidden_layers=32, num_attention_heads=16, mlp_ratio=4.0, hidden_act="gelu_pytorch_tanh",
        attn_implementation="sdpa")  # fmt: skip
    with torch.device("cuda"):
        model = RadioModel(config).to(torch.bfloat16).train()
    run = torch.compile(model)
    pixels = torch.randn(8, 3, 512, 512, device="cuda", dtype=torch.bfloat16)

    def step():
        model.zero_grad(set_to_none=True)
        features = run(pixels).features
        features.backward(torch.ones_like(features))
        torch.cuda.synchronize()

    for _ in range(WARM_UP):
        step()
    torch.cuda.reset_peak_memory_stats()
    times_ms = []
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        step()
        times_ms.append((time.perf_counter() - start) * 1e3)
    print(json.dumps(dict(
        ms_forward_backward=statistics.median(times_ms), peak_gb=torch.cuda.max_memory_allocated() / 1e9,
        parameters=sum(p.numel() for p in model.parameters()))))  # fmt: skip


if __name__ == "__main__":
    main()
