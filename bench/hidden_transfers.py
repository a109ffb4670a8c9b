#!/usr/bin/env python3
"""Says how much of the transfers between modules lies beside compute, from the merged trace of a run on GPUs.

    bench/hidden_transfers.py RUN/trace.json GROUP ...      e.g. images.embeddings images.embedding-gradients

A transfer counts from when both ranks' GPUs are in it until the later one completes it: before that, one rank waits
for what the other has not computed yet. The table shows the share of that time in which any of the ranks computes, and
in which each of them does.
"""
import collections
import json
import sys

COMPUTE = ("forward", "backward", "optimizer")


def covered(begin, end, spans):
    """Of [begin, end], the time in at least one of the spans."""
    time, reached = 0, begin
    for b, e in sorted(spans):
        time += max(0, min(end, e) - max(reached, b))
        reached = max(reached, min(end, e))
    return time


def main():
    path, *groups = sys.argv[1:] or sys.exit(__doc__)
    with open(path) as file:
        events = json.load(file)
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    ranks = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    compute = collections.defaultdict(list)
    transfers = collections.defaultdict(dict)
    for e in events:
        if e["ph"] != "X":
            continue
        span = (e["ts"], e["ts"] + e["dur"])
        if threads[e["pid"], e["tid"]] == "GPU" and e["name"].endswith(COMPUTE):
            compute[e["pid"]].append(span)
        elif e["name"].partition(" ")[2].partition(" ")[0] in groups:
            transfers[e["name"], e["args"]["number"]][e["pid"]] = span + (e["args"]["bytes"],)
    print(f"{'transfers':44}{'count':>7}{'MB each':>9}{'ms each':>9}  beside compute of")
    for name in sorted({name for name, _ in transfers}):
        sides = [spans for (n, _), spans in transfers.items() if n == name and len(spans) > 1]
        windows = [(max(s[0] for s in spans.values()), max(s[1] for s in spans.values())) for spans in sides]
        total = sum(end - begin for begin, end in windows)
        mb = sum(next(iter(spans.values()))[2] for spans in sides) / 1e6 / len(sides)
        def share(spans):
            return f"{sum(covered(*window, spans) for window in windows) / total:.0%}"
        shares = [f"any rank {share(sum(compute.values(), []))}"] + [f"{ranks[r]} {share(compute[r])}" for r in sorted(ranks)]
        print(f"{name:44}{len(sides):7}{mb:9.2f}{total / len(sides) / 1e3:9.2f}  {', '.join(shares)}")


if __name__ == "__main__":
    main()
