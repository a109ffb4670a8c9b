"""`braid compare` on files that others write: event files of PyTorch's and TensorBoard's own writers, sample traces whose
hashes Python computes from the tensors, and activations whose figures of agreement NumPy computes."""
import hashlib
import json
import math
import os

import numpy
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter

from programs import run_program

BRAID = os.environ["BRAID"]


def compare(*arguments):
    result = run_program([BRAID, "compare", *arguments, "--json"])
    assert result.returncode in (0, 1), result.stderr
    assert json.loads(result.stdout)["equal"] == (result.returncode == 0)
    return json.loads(result.stdout)


def metrics(folder, losses):
    folder.mkdir()
    lines = [json.dumps(dict(iteration=i, lm_loss=loss, skipped=False)) for i, loss in losses.items()]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def figure(comparison, name="lm_loss"):
    return next(each for each in comparison["figures"] if each["name"] == name)


LOSSES = {i: 2 + math.sin(i) / i for i in range(1, 41)}


def test_every_form_of_a_scalar_event(tmp_path):
    metrics(tmp_path / "exact", LOSSES)
    forms = dict(old={}, new=dict(new_style=True), double=dict(new_style=True, double_precision=True))
    for name, form in forms.items():
        with SummaryWriter(str(tmp_path / name)) as writer:
            for step, loss in LOSSES.items():
                writer.add_scalar("lm loss", loss, step, **form)
                writer.add_scalar("lm loss vs samples", 0.0, step * 8)
    writer = EventFileWriter(str(tmp_path / "content"))
    for step, loss in LOSSES.items():
        tensor = TensorProto(dtype="DT_FLOAT", tensor_content=numpy.float32(loss).tobytes())
        writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag="lm loss", tensor=tensor)])))
    writer.close()
    for name in [*forms, "content"]:
        found = figure(compare(tmp_path / "exact", tmp_path / name))
        assert (found["compared"], found["different"]) == (40, 0), name
    changed = dict(LOSSES)
    changed[17] *= 1 + 3e-7
    metrics(tmp_path / "changed", changed)
    assert figure(compare(tmp_path / "changed", tmp_path / "old"))["first_difference"]["iteration"] == 17


def test_figures_of_agreement_are_those_of_numpy(tmp_path):
    random = numpy.random.default_rng(5)
    a = dict(LOSSES)
    b = {i: loss * (1 + 0.01 * random.standard_normal()) for i, loss in LOSSES.items()}
    metrics(tmp_path / "a", a)
    metrics(tmp_path / "b", b)
    x, y = numpy.array(list(a.values())), numpy.array(list(b.values()))
    relative = abs(x - y) / numpy.maximum(abs(x), abs(y))
    found = figure(compare(tmp_path / "a", tmp_path / "b"))
    assert math.isclose(found["correlation"], numpy.corrcoef(x, y)[0, 1], rel_tol=1e-9)
    assert math.isclose(found["max_relative"], relative.max(), rel_tol=1e-12)
    assert found["at_max_relative"] == 1 + relative.argmax()
    assert math.isclose(found["mean_relative"], relative.mean(), rel_tol=1e-12)
    assert math.isclose(found["max_absolute"], abs(x - y).max(), rel_tol=1e-12)
    assert compare(tmp_path / "a", tmp_path / "b", "--rtol", relative.max() * 1.001)["equal"]
    assert not compare(tmp_path / "a", tmp_path / "b", "--rtol", relative.max() * 0.999)["equal"]


def test_a_log_against_the_metrics_of_the_same_run(tmp_path):
    """Its own log and event files, at an interval of four and over a resume, are equal to what the run computed."""
    recipe = os.path.join(os.path.dirname(__file__), "..", "..", "recipes", "tiny-vlm-colocated.yaml")
    small = ["--encoder-dp", 1, "--llm-tp", 1, "--llm-dp", 1, "--llm-ep", 1, "--model.language.pattern", "M-",
             "--model.images.encoder.layers", 1, "--seq-length", 32, "--micro-batch-size", 3, "--global-batch-size", 6,
             "--train-iters", 14, "--save", tmp_path / "ckpt", "--load", tmp_path / "ckpt", "--log-interval", 4,
             "--metrics-file", tmp_path / "m.jsonl", "--tensorboard-dir", tmp_path / "events"]
    log = ""
    for part, more in (("first", ["--exit-interval", 6]), ("rest", [])):
        run = run_program([BRAID, "train", recipe, *small, *more, "--log.sample_trace_dir", tmp_path / part])
        assert run.returncode == 0, run.stdout + run.stderr
        log += run.stdout
    (tmp_path / "run.log").write_text(log)
    for other in ("run.log", "events"):
        found = compare(tmp_path / "m.jsonl", tmp_path / other)
        assert found["equal"], found
        assert figure(found)["compared"] == 5  # 4, 6, 8, 12, 14
        assert figure(found, "grad_norm")["compared"] == 5
        assert found["a"]["iterations_only_here"] == found["b"]["iterations_only_here"] == []
    check_traces(tmp_path, recipe, small)


def check_traces(folder, recipe, settings):
    """The resumed run's trace is the rest of that of a run without a break."""
    settings = settings[:settings.index("--save")]
    whole = run_program([BRAID, "train", recipe, *settings, "--energon-sample-trace-dir", folder / "whole"])
    assert whole.returncode == 0, whole.stdout + whole.stderr
    steps = {}
    for part in ("first", "rest", "whole"):
        lines = (folder / part / "train_dataloader_llm_lane000.rank00000.jsonl").read_text().splitlines()
        steps[part] = [json.loads(line)["step"] for line in lines]
    assert steps == dict(first=list(range(12)), rest=list(range(12, 28)), whole=list(range(28)))
    for part, count in (("first", 24), ("rest", 32)):
        found = compare("--samples", folder / "whole", folder / part)
        assert (found["equal"], found["files"], found["compared"]) == (True, 2, count)


def blake2b(tensor):
    if tensor is None or tensor.numel() == 0:
        return 0
    state = hashlib.blake2b(digest_size=8)
    for part in (str(tuple(tensor.shape)).encode(), str(tensor.dtype).encode(),
                 tensor.contiguous().numpy().tobytes()):
        state.update(part)
    return int.from_bytes(state.digest(), "big")


def packing_checksum(fields):
    checksum = 0
    for key in sorted(fields):
        value = fields[key]
        number = blake2b(value) if torch.is_tensor(value) else sum(value.encode()) if isinstance(value, str) else value
        checksum = (131 * checksum + number) % 2147483647
    return checksum


def signatures_of_probe():
    """The tensors that tests/support/trace_probe.cpp gives its trace."""
    ids = torch.arange(12)
    labels = torch.where(ids % 3 == 0, -100, ids + 1)
    borders = torch.tensor([0, 5, 12], dtype=torch.int32)
    packing = dict(qkv_format="thd", total_tokens=12)
    packing |= {f"cu_seqlens_{kind}": borders for kind in ("q", "kv", "q_padded", "kv_padded")}
    packing |= {f"max_seqlen_{kind}": 7 for kind in ("q", "kv")}
    text = [blake2b(ids.view(2, 6)), blake2b(labels.view(2, 6)), int((labels != -100).sum()), 0, 0,
            packing_checksum(packing)]
    values = (torch.arange(7 * 3) * 11 % 256).to(torch.uint8).view(1, 7, 3)
    return [text], [[0, 0, 0, 1, blake2b(values[:, :4]), 0], [0] * 6, [0, 0, 0, 1, blake2b(values[:, 4:]), 0]]


def test_the_hashes_of_a_sample_trace_are_pythons(tmp_path):
    probe = run_program([os.environ["BRAID_TRACE_PROBE"], tmp_path])
    assert probe.returncode == 0, probe.stderr
    read = lambda name: [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
    text, pictures = signatures_of_probe()
    assert read("train_dataloader_llm_lane003.rank00012.jsonl") == [
        dict(llm_lanes=[3], role="llm", signatures=text, step=5)]
    assert read("train_dataloader_encoder_dprank001_lanes003-005.rank00001.jsonl") == [
        dict(llm_lanes=[3, 4, 5], role="encoder", signatures=pictures, step=5)]


# Modules on ranks of their own; the last two have other microbatches, too.
LAYOUTS = {
    "one": ["--encoder-dp", 1, "--llm-tp", 1, "--llm-dp", 1, "--llm-ep", 1, "--micro-batch-size", 8],
    "split": ["--encoder-dp", 2, "--llm-tp", 2, "--llm-dp", 2, "--llm-ep", 1, "--sequence-parallel", "--micro-batch-size", 2],
    "context": ["--encoder-dp", 1, "--llm-tp", 1, "--llm-cp", 2, "--llm-dp", 1, "--llm-ep", 1, "--micro-batch-size", 4],
    "stages": ["--encoder-dp", 1, "--llm-tp", 1, "--llm-dp", 1, "--llm-ep", 1, "--llm-pp", 2, "--micro-batch-size", 2],
}


@pytest.fixture(scope="module")
def activations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("activations")
    recipe = os.path.join(os.path.dirname(__file__), "..", "..", "recipes", "tiny-vlm.yaml")
    for name, layout in LAYOUTS.items():
        run = run_program([BRAID, "train", recipe, "--train-iters", 2, "--global-batch-size", 8, "--seq-length", 32,
                           "--model.language.pattern", "M-", "--model.images.encoder.layers", 1, "--model.dtype", "float64",
                           *layout, "--log.activation_dir", folder / name, "--log.activation_steps", 2])
        assert run.returncode == 0, run.stdout + run.stderr
    return folder


def whole(folder, name, iteration):
    parts = {}
    for file in folder.glob(f"iter_{iteration:07d}.rank*.safetensors"):
        parts |= {int(key.split("@")[1]): rows for key, rows in load_file(file).items() if key.startswith(name + "@")}
    return numpy.concatenate([parts[row] for row in sorted(parts)])


@pytest.mark.parametrize("layout", list(LAYOUTS)[1:])
def test_every_layout_writes_the_same_activations(activations, layout):
    found = compare("--activations", activations / "one", activations / layout, "--rtol", 1e-9)
    assert found["equal"], found
    assert [(each["name"], each["iteration"], each["rows"]) for each in found["activations"]
            if each["name"] == "combined_embeddings"] == [("combined_embeddings", i, 8 * 32) for i in (1, 2)]
    assert sum(each["name"] == "vision_proj" for each in found["activations"]) == 2


def test_figures_of_activations_are_those_of_numpy(activations, tmp_path):
    random = numpy.random.default_rng(7)
    a = {name: whole(activations / "split", name, 1) for name in ("vision_proj", "combined_embeddings")}
    b = {name: (rows * (1 + 1e-3 * random.standard_normal(rows.shape))).astype(dtype)
         for (name, rows), dtype in zip(a.items(), (numpy.float32, numpy.float16))}
    save_file(b, tmp_path / "b.safetensors")
    for found in compare("--activations", activations / "one", tmp_path / "b.safetensors")["activations"]:
        x, y = a[found["name"]].ravel(), b[found["name"]].astype(float).ravel()
        expected = dict(cosine=x @ y / numpy.linalg.norm(x) / numpy.linalg.norm(y), absmax_a=abs(x).max(),
                        absmax_b=abs(y).max(), max_absolute=abs(x - y).max(),
                        relative=numpy.linalg.norm(x - y) / numpy.linalg.norm(x))
        assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-9)
