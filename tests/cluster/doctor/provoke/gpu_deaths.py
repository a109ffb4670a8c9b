"""Dies on a GPU in a way of your choice, to see what PyTorch and NCCL then say: gpu_deaths.py CASE, under torchrun or by hand.

Several ranks may share one GPU: with a NCCL_HOSTID each, NCCL takes them for ranks on different hosts.
"""
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host-of-rank-{rank}"
case = sys.argv[1]
torch.cuda.set_device(0)


def join(seconds=10):
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=seconds))


def all_reduce():
    x = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    return x


def iteration(number):
    all_reduce()
    if rank == 0:
        print(f" [2026-11-15 09:40:{number:02d}.620204] iteration {number:8d}/     100 | lm loss: 5.3{number}E+00 |", flush=True)


class ExpertLayer(torch.nn.Module):
    def forward(self, tokens):
        return torch.empty(1 << 38, dtype=torch.bfloat16, device="cuda") + tokens


def merge_sources(batch):
    return batch["images"] + batch["text"]


def main():
    if case == "unique_id":  # rank 0 hangs before it makes the communicator
        join()
        if rank == 0:
            time.sleep(60)
        all_reduce()
    join()
    for number in range(1, 4):
        iteration(number)
    if case == "oom" and rank == 1:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    elif case == "moe_oom" and rank == 2:
        ExpertLayer()(torch.ones(1, device="cuda"))
    elif case == "silent" and rank == 2:
        time.sleep(120)
    elif case == "killed" and rank == 3:
        os.kill(os.getpid(), 9)
    elif case == "data" and rank == 0:
        merge_sources({"images": torch.zeros(3), "text": torch.zeros(4)})
    elif case == "assert" and rank == 1:
        torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")]
    iteration(4)
    iteration(5)


main()
