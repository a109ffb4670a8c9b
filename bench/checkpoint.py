"""Saving and loading one state from the same number of processes on the same disk: Braid and torch.distributed.checkpoint.

    python3 bench/checkpoint.py build/bench_checkpoint_worker [--folder DIR] [--processes 2] [--gib 2] [--rounds 5]

Every process has its rows of each tensor. A save ends when all of it is on disk and the checkpoint is complete; before a load
the files are put out of the page cache. Rounds and loads alternate between the two; the table has the median, and
the smallest and largest. Needs torch.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

COLUMNS = 4096


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("worker", help="the program bench_checkpoint_worker")
    parser.add_argument("--folder", default=".", help="on the disk to measure")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gib", type=float, default=2, help="the whole state")
    parser.add_argument("--tensors", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loads", type=int, default=3, help="in each round")
    parser.add_argument("--warm", action="store_true", help="load from the page cache")
    return parser.parse_args()


class Braid:
    def __init__(self, options, rows):
        sizes = [str(n) for n in (options.processes, options.tensors, rows, COLUMNS)]
        self.workers = [subprocess.Popen([options.worker, str(rank), *sizes], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True,
                                         env=dict(os.environ, OMP_NUM_THREADS="1"))
                        for rank in range(options.processes)]  # fmt: skip
        self.order("check", "-")  # they are up

    def order(self, command, root, *ranks):
        workers = [self.workers[rank] for rank in ranks] or self.workers
        for worker in workers:
            worker.stdin.write(f"{command} {root}\n")
            worker.stdin.flush()
        answers = [worker.stdout.readline().split() for worker in workers]
        if any(not answer or answer[0] != "ok" for answer in answers):
            sys.exit(f"braid: {answers}")
        return max(int(answer[1]) for answer in answers)

    def save(self, root):
        self.order("begin", root, 0)
        self.order("save", root)

    def load(self, root):
        self.order("load", root)


def peer_process(rank, options, rows, meeting, commands, answers):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=options.processes)
    state = {f"rank{rank}.tensor{i}": torch.full((rows, COLUMNS), float(1000 * rank + i + 1))
             for i in range(options.tensors)}  # fmt: skip
    while command := commands.get():
        name, root = command
        if name == "save":
            dcp.save(state, checkpoint_id=root)
        if name == "load":
            dcp.load(state, checkpoint_id=root)
        if name == "clear":
            for tensor in state.values():
                tensor.zero_()
        if name == "check":
            for i, tensor in enumerate(state.values()):
                assert bool((tensor == 1000 * rank + i + 1).all()), f"tensor {i} is not what was saved"
        answers.put(rank)


class Peer:
    def __init__(self, options, rows):
        meeting = os.path.join(tempfile.mkdtemp(), "meeting")
        context = mp.get_context("spawn")
        self.answers = context.Queue()
        self.commands = [context.Queue() for _ in range(options.processes)]
        for rank, commands in enumerate(self.commands):
            context.Process(target=peer_process, args=(rank, options, rows, meeting, commands, self.answers),
                            daemon=True).start()  # fmt: skip
        self.order("check", "-")

    def order(self, command, root):
        for commands in self.commands:
            commands.put((command, root))
        for _ in self.commands:
            self.answers.get(timeout=600)

    def save(self, root):
        self.order("save", root)

    def load(self, root):
        self.order("load", root)


def forget_pages(folder):
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fetch_pages(folder):
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), "rb") as file:
                while file.read(1 << 24):
                    pass


def seconds(act, *arguments):
    start = time.perf_counter()
    act(*arguments)
    return time.perf_counter() - start


def main():
    options = parse_arguments()
    rows = int(options.gib * 2**30 / 4 / COLUMNS / options.tensors / options.processes)
    total = rows * COLUMNS * 4 * options.tensors * options.processes
    sides = {"Braid": Braid(options, rows), "torch DCP": Peer(options, rows)}
    braid = sides["Braid"]
    times = {(side, act): [] for side in sides for act in ("save", "load")}
    extra = 0
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="checkpoint-bench-") as folder:
        for number in range(options.rounds):
            # The second one finds the disk's own caches in another state.
            for name, side in list(sides.items())[:: 1 if number % 2 == 0 else -1]:
                root = os.path.join(folder, name.replace(" ", "-"))
                shutil.rmtree(root, ignore_errors=True)
                os.sync()
                times[name, "save"].append(seconds(side.save, root))
                for _ in range(options.loads):
                    (fetch_pages if options.warm else forget_pages)(root)
                    side.order("clear", "-")
                    times[name, "load"].append(seconds(side.load, root))
                    side.order("check", "-")
        root = os.path.join(folder, "snapshot")
        braid.order("begin", root, 0)
        extra = braid.order("snapshot", root)
    share = total / options.processes
    print(f"{total / 2**30:.2f} GiB in {options.tensors} tensors, {options.processes} processes, {options.rounds} rounds")
    print(f"{'':10}{'Braid':>26}{'torch DCP':>26}{'ratio':>8}")
    for act in ("save", "load"):
        cells, medians = "", []
        for side in sides:
            each = times[side, act]
            medians.append(statistics.median(each))
            cells += f"{medians[-1]:9.2f} s ({min(each):.2f} - {max(each):.2f})"
        print(f"{act:10}{cells}{medians[1] / medians[0]:8.2f}")
    print(f"an asynchronous save needs {extra / share:.2f} x the memory of what the process saves")


if __name__ == "__main__":
    main()
