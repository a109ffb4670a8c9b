#!/usr/bin/env python3
"""How often `braid doctor` is right about a folder of logs: score.py FOLDER BRAID [--misses]"""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def verdict(braid, log):
    with tempfile.TemporaryDirectory() as folder:  # the name of a corpus file may say what it is about
        copy = Path(folder) / "job.log"
        shutil.copy(log, copy)
        run = subprocess.run([braid, "doctor", copy, "--json"], capture_output=True, text=True)
    answer = json.loads(run.stdout)
    return answer["cause"], -1 if answer["first_rank"] is None else answer["first_rank"]


def main(folder, braid, *options):
    rows = json.loads((Path(folder) / "expected.json").read_text())
    causes = ranks = both = 0
    for name, row in rows.items():
        cause, rank = verdict(braid, Path(folder) / f"{name}.log")
        right_cause = cause in [row["cause"], *row.get("also", [])]
        right_rank = rank in [row["rank"], *row.get("rank_also", [])]
        causes, ranks, both = causes + right_cause, ranks + right_rank, both + (right_cause and right_rank)
        if "--misses" in options and not (right_cause and right_rank):
            print(f"{name}: {cause}, rank {rank}; expected {row['cause']}, rank {row['rank']}")
    share = lambda count: f"{count} ({100 * count / len(rows):.1f} %)"
    print(f"{len(rows)} logs: cause right in {share(causes)}, rank in {share(ranks)}, both in {share(both)}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
