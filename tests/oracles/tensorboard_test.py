"""TensorBoard reads our event files: its own loader checks every checksum, its accumulator is what the web page shows."""
import math
import os
import re
import socket
import struct
import time

import pytest
from tensorboard.backend.event_processing import event_accumulator, event_file_loader

from programs import run_program

EVENT_PROBE = os.environ["BRAID_EVENT_PROBE"]
MOCK_RUN = os.environ["BRAID_MOCK_RUN"]


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def write_events(folder, scalars):
    lines = "".join(f"{tag}\t{value!r}\t{step}\n" for tag, value, step in scalars)
    probe = run_program([EVENT_PROBE, folder], input=lines)
    assert probe.returncode == 0, probe.stderr
    return probe.stdout.strip()


def read_scalars(folder):
    accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.SCALARS: 0,
                                                                                 event_accumulator.TENSORS: 0})
    accumulator.Reload()
    return {tag: [(event.value, event.step) for event in accumulator.Scalars(tag)]
            for tag in accumulator.Tags()["scalars"]}


def load_events(path):
    return list(event_file_loader.RawEventFileLoader(path).Load())


def test_scalars_come_back_exact_to_float32(tmp_path):
    values = [0.1, -2.5, 1e-45, 3.4028234663852886e38, 2.0**24 + 1, 0.0]
    write_events(tmp_path, [("loss", value, step) for step, value in enumerate(values)])
    assert read_scalars(tmp_path) == {"loss": [(float32(value), step) for step, value in enumerate(values)]}


def test_values_that_are_not_finite_are_kept(tmp_path):
    write_events(tmp_path, [("loss", math.nan, 1), ("loss", math.inf, 2), ("loss", -math.inf, 3)])
    (nan, _), *infinities = read_scalars(tmp_path)["loss"]
    assert math.isnan(nan)
    assert infinities == [(math.inf, 2), (-math.inf, 3)]


@pytest.mark.parametrize("tag", ["lm loss vs samples", "mem/cuda-peak-mb", "Verlust je Schritt, groß", "t" * 200])
def test_any_tag(tmp_path, tag):
    write_events(tmp_path, [(tag, 1.0, 1)])
    assert read_scalars(tmp_path) == {tag: [(1.0, 1)]}


@pytest.mark.parametrize("step", [0, 127, 128, 300, 2**31, 2**62])
def test_steps_of_every_length(tmp_path, step):
    write_events(tmp_path, [("loss", 1.0, step)])
    assert read_scalars(tmp_path) == {"loss": [(1.0, step)]}


def test_many_records(tmp_path):
    scalars = [(f"tag {i % 7}", i / 3, i) for i in range(20000)]
    write_events(tmp_path, scalars)
    got = read_scalars(tmp_path)
    for number in range(7):
        tag = f"tag {number}"
        assert got[tag] == [(float32(value), step) for name, value, step in scalars if name == tag]


def test_the_first_event_names_the_version(tmp_path):
    before = time.time()
    path = write_events(tmp_path, [("loss", 1.0, 1)])
    after = time.time()
    accumulator = event_accumulator.EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert accumulator.file_version == 2.0
    assert before <= accumulator.FirstEventTimestamp() <= after
    assert before <= accumulator.Scalars("loss")[0].wall_time <= after
    name = rf"events\.out\.tfevents\.(\d{{10}})\.{re.escape(socket.gethostname())}\.\d+\.0"
    seconds = re.fullmatch(name, os.path.basename(path))[1]
    assert int(before) <= int(seconds) <= after


def test_a_resumed_run_continues_in_a_second_file(tmp_path):
    write_events(tmp_path, [("loss", 1.0, 1), ("loss", 0.5, 2)])
    time.sleep(1 - time.time() % 1 + 0.01)  # the next second: files are read in the order of their names
    write_events(tmp_path, [("loss", 0.25, 3)])
    assert len(os.listdir(tmp_path)) == 2
    assert read_scalars(tmp_path) == {"loss": [(1.0, 1), (0.5, 2), (0.25, 3)]}


def test_a_file_cut_off_anywhere_gives_the_records_before_the_cut(tmp_path):
    path = write_events(tmp_path, [("loss", float(step), step) for step in range(5)])
    whole = load_events(path)
    assert len(whole) == 6
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 3)
    assert load_events(path) == whole[:-1]


def test_a_changed_byte_is_noticed(tmp_path):
    path = write_events(tmp_path, [("loss", 1.0, 1)])
    with open(path, "r+b") as file:
        file.seek(-10, os.SEEK_END)
        byte = file.read(1)
        file.seek(-10, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    assert len(load_events(path)) == 1


def test_a_run_has_megatrons_tags(tmp_path):
    run = run_program([MOCK_RUN, "2", "25", "1"], env=dict(os.environ, BRAID_TEST_TENSORBOARD_DIR=str(tmp_path)))
    assert run.returncode == 0, run.stderr
    scalars = read_scalars(tmp_path)
    for tag in ["lm loss", "learning-rate", "grad-norm", "batch-size", "loss-scale", "num-zeros", "iteration-time-ms",
                "seq_load_balancing_loss"]:
        assert [step for _, step in scalars[tag]] == [10, 20, 25], tag
        assert [step for _, step in scalars[f"{tag} vs samples"]] == [80, 160, 200], tag
    means = [sum(2 + 3 / i for i in iterations) / len(iterations)
             for iterations in (range(1, 11), range(11, 21), range(21, 26))]
    assert [value for value, _ in scalars["lm loss"]] == pytest.approx(means, rel=1e-6)  # float32
    assert [value for value, _ in scalars["num-zeros"]] == [5, 5, 5]
    assert all(value > 0 for value, _ in scalars["mem/host-rss-mb"])
    assert "time-ms/images/bridge wait" in scalars
