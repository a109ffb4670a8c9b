"""Decoding and resizing of photographs on one core: Braid, Pillow, and libjpeg-turbo alone as the limit of decoding.

    python3 bench/image.py build/bench_image FILE... [--size 512x512] [--rounds 20]

Times are CPU milliseconds, the least of all rounds. The resized pixels of both must be equal. Needs Pillow and numpy.
"""

import argparse
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image


def least_ms(rounds, work):
    times = []
    for _ in range(rounds):
        start = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - start)
    return min(times) / 1e6


def checksum_of(image):
    values = np.asarray(image).reshape(-1).astype(np.uint64)
    return int((values * (np.arange(values.size, dtype=np.uint64) % np.uint64(65521) + np.uint64(1))).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="bench_image")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--size", default="512x512", help="of the result, in pixels")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    size = tuple(int(side) for side in arguments.size.split("x"))

    columns = ["file", "pixels", "header", "decode: Pillow", "Braid", "ratio", "libjpeg alone", "scaled decode",
               "resize: Pillow", "Braid", "ratio", "ratio of both"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for file in arguments.files:
        # One file at a time, so that both see the same load of the machine.
        run = [arguments.program, *map(str, size), str(arguments.rounds), str(file)]
        ours = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
        data = file.read_bytes()
        decode_ms = least_ms(arguments.rounds, lambda: Image.open(io.BytesIO(data)).convert("RGB"))
        image = Image.open(io.BytesIO(data)).convert("RGB")
        resize_ms = least_ms(arguments.rounds, lambda: image.resize(size, Image.Resampling.BICUBIC))
        if checksum_of(image.resize(size, Image.Resampling.BICUBIC)) != ours["checksum"]:
            sys.exit(f"{file}: the resized pixels differ from Pillow's")
        limit = f"{ours['limit_ms']:.2f}" if ours["limit_ms"] else "-"
        both = (decode_ms + resize_ms) / (ours["decode_ms"] + ours["resize_ms"])
        print(f"| {file.name} | {image.width} x {image.height} | {ours['header_ms']:.4f} | {decode_ms:.2f} | "
              f"{ours['decode_ms']:.2f} | {decode_ms / ours['decode_ms']:.2f} | {limit} | {ours['scaled_ms']:.2f} | "
              f"{resize_ms:.2f} | {ours['resize_ms']:.2f} | {resize_ms / ours['resize_ms']:.2f} | {both:.2f} |",
              flush=True)


if __name__ == "__main__":
    main()
