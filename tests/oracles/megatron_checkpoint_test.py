"""Whole checkpoints of training runs against torch.distributed.checkpoint and megatron-core, live.

Both read what `braid train --save` wrote, and Braid goes on from what they saved again, as if nothing had happened. The
keys and shapes are those that megatron-core's own models and optimizers ask for; two of its ranks, tensor parallel, do
all its work in one go (`megatron`), since importing it takes the most time by far.

    BRAID=build/braid python -m pytest tests/oracles/megatron_checkpoint_test.py
"""
import contextlib
import json
import multiprocessing
import os
import pickle
import re
import shutil
import sys
import types
import zlib
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from programs import run_program

RECIPES = Path(__file__).parents[2] / "recipes"
VLM = [RECIPES / "tiny-vlm-colocated.yaml", "--encoder-dp", 2, "--llm-dp", 1, "--llm-ep", 2,
       "--model.language.pattern", "M*E-", "--model.images.encoder.layers", 2,
       "--model.images.encoder.final_norm", "false", "--seq-length", 32, "--global-batch-size", 4]
LLAVA = [RECIPES / "tiny-llava.yaml", "--llm-tp", 1, "--llm-pp", 1, "--seq-length", 64, "--encoder-dp", 1]
# Weights as they were made, in one iteration that changes none of them.
STILL = ["--train-iters", 1, "--lr", 0, "--min-lr", 0, "--model.language.expert_bias_rate", 0]

WORLD = 2
FORMAT = ('{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", '
          '"common_backend_version": 1}')
OURS = {"language": "language_model.module.",
        "vision": "modality_submodules.images.module.encoders.radio_encoder.radio_model.",
        "projection": "modality_submodules.images.module.input_projections.0."}
NEMOTRON = {"language": "language_model.", "vision": "vision_model.", "projection": "vision_projection."}
LLAVA_PREFIXES = {"llama": "language_model.module.",
                  "clip": "modality_submodules.images.module.encoders.clip_encoder.",
                  "mlp": "modality_submodules.images.module.input_projections.0."}


def made(name, shape):
    """Values of a parameter, the same wherever they are needed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))) * 0.05


def stored(folder):
    """Everything in a checkpoint, tensors whole, as torch.distributed.checkpoint reads it."""
    entries = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {key: torch.empty(entry.size, dtype=entry.properties.dtype)
             if isinstance(entry, TensorStorageMetadata) else None for key, entry in entries.items()}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def tensors_in(state):
    return {key: value for key, value in state.items() if torch.is_tensor(value)}


def weights_in(state):
    return {key: value for key, value in tensors_in(state).items() if not key.startswith("mimo.")}


def shapes(state):
    return {key: tuple(value.shape) for key, value in tensors_in(state).items()}


# ---- in megatron-core's ranks


def stub_cuda():
    """megatron-core asks CUDA even where all tensors are on the CPU."""
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.Stream = lambda *_, **__: None
    torch.Tensor.cuda = lambda self, *_, **__: self


def stub_mamba_kernels():
    """Names that megatron-core imports; only the norm has parameters, and nothing here is run."""
    class GatedNorm(torch.nn.Module):
        def __init__(self, hidden, dtype=None, **_):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(hidden, dtype=dtype))
            self.register_parameter("bias", None)

    triton = "mamba_ssm.ops.triton."
    for name, names in {
            "mamba_ssm": {"__version__": "2.2.4"}, "mamba_ssm.ops": {}, "mamba_ssm.ops.triton": {},
            triton + "selective_state_update": {"selective_state_update": None},
            triton + "layernorm_gated": {"RMSNorm": GatedNorm},
            triton + "ssd_combined": {"mamba_chunk_scan_combined": None,
                                      "mamba_split_conv1d_scan_combined": None}}.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(names)


def config(**sizes):
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(**{**dict(
        tensor_model_parallel_size=WORLD, expert_tensor_parallel_size=1, use_cpu_initialization=True,
        perform_initialization=False), **sizes})


def hybrid_model():
    """The language model of tiny-vlm, of parts that need no Transformer Engine; the keys are those with it."""
    import megatron.core.post_training.modelopt.mamba.model_specs as specs
    import megatron.core.ssm.mamba_block as block
    import megatron.core.ssm.mamba_mixer as mixer
    from megatron.core.models.mamba.mamba_model import MambaModel
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    specs.Norm = block.TENorm = WrappedTorchNorm
    mixer.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)
    sizes = config(
        num_layers=4, hidden_size=64, num_attention_heads=16, num_query_groups=8, kv_channels=8, ffn_hidden_size=128,
        expert_model_parallel_size=WORLD, num_moe_experts=8, moe_ffn_hidden_size=32,
        moe_shared_expert_intermediate_size=64, moe_router_topk=2,
        moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid", moe_token_dispatcher_type="alltoall",
        normalization="RMSNorm", add_bias_linear=False, is_hybrid_model=True, mamba_state_dim=16, mamba_head_dim=8,
        mamba_num_groups=8, mamba_num_heads=16)
    spec = specs.get_mamba_stack_modelopt_spec(local_core_attention=True, remap_te_layernorm=True)
    return MambaModel(sizes, spec, vocab_size=512, max_sequence_length=64, hybrid_override_pattern="M*E-")


def vision_layers():
    """Transformer layers without Transformer Engine, under the keys that they have with it."""
    from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec

    spec = get_vit_layer_with_local_spec()
    spec.submodules.sharded_state_dict_keys_map = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_",
                                                   "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
    return spec


def models():
    """megatron-core's modules like those of tiny-vlm and tiny-llava, by what OURS and LLAVA_PREFIXES call them."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.models.vision.clip_vit_model import CLIPViTModel
    from megatron.core.models.vision.multimodal_projector import MultimodalProjector
    from megatron.core.models.vision.radio import RADIOViTModel
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    vision = dict(hidden_size=32, num_attention_heads=4, ffn_hidden_size=128)
    llama = config(num_layers=4, hidden_size=64, num_attention_heads=8, num_query_groups=4, ffn_hidden_size=192,
                   normalization="RMSNorm", add_bias_linear=False, gated_linear_unit=True,
                   activation_func=torch.nn.functional.silu)
    to_language = config(num_layers=1, hidden_size=64, num_attention_heads=2, ffn_hidden_size=128,
                         add_bias_linear=False)
    linears = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    return {
        "language": hybrid_model(),
        "vision": RADIOViTModel(config(num_layers=2, **vision), vision_layers(), class_token_len=3, max_img_h=256,
                                max_img_w=256),
        "projection": MultimodalProjector(to_language, linears, "affine", input_size=128),
        "llama": GPTModel(llama, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=512,
                          max_sequence_length=64, share_embeddings_and_output_weights=False,
                          position_embedding_type="rope"),
        "clip": CLIPViTModel(config(num_layers=3, **vision), vision_layers(), ln_pre_impl=WrappedTorchNorm,
                             patch_dim=14, img_h=56, img_w=56),
        "mlp": MultimodalProjector(to_language, linears, "mlp", input_size=32),
    }


class Rank:
    def __init__(self, rank):
        self.rank, self.models, self.result = rank, models(), {}

    def wanted(self, prefixes):
        """ShardedTensors and ShardedObjects of models, in the parts that are stored."""
        from megatron.core.dist_checkpointing import ShardedTensor
        from megatron.core.dist_checkpointing.dict_utils import nested_values
        from megatron.core.dist_checkpointing.mapping import apply_factories

        wanted = []
        for name, prefix in prefixes.items():
            state = self.models[name].sharded_state_dict(prefix=prefix)
            apply_factories(state)
            wanted += nested_values(state)
        return ([part for part in wanted if isinstance(part, ShardedTensor)],
                [part for part in wanted if not isinstance(part, ShardedTensor)])

    def describe_models(self):
        self.result["shapes"] = {name: {part.key: tuple(part.global_shape) for part in self.wanted(prefixes)[0]}
                                 for name, prefixes in {"vlm": OURS, "llava": LLAVA_PREFIXES}.items()}

    def describe_scheduler(self):
        """After two iterations of Braid's run."""
        from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

        optimizer = types.SimpleNamespace(param_groups=[{"lr": 0, "weight_decay": 0, "params": []}])
        scheduler = OptimizerParamScheduler(
            optimizer, init_lr=0.0, max_lr=3e-3, min_lr=3e-4, lr_warmup_steps=0, lr_decay_steps=16,
            lr_decay_style="cosine", start_wd=0.1, end_wd=0.1, wd_incr_steps=16, wd_incr_style="constant")
        scheduler.step(8)
        self.result["scheduler"] = scheduler.state_dict()

    def load_into_models(self, checkpoint):
        from megatron.core import dist_checkpointing

        tensors, objects = self.wanted(OURS)
        loaded = dist_checkpointing.load({"parts": dict(enumerate(tensors + objects))}, str(checkpoint))["parts"]
        self.result["in models"] = [(part.key, part.global_slice(), loaded[i]) for i, part in enumerate(tensors)]

    def halves(self, checkpoint):
        """Of every tensor a half, of its longest axis, and all objects."""
        from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor

        tensors, objects = {}, {}
        for key, entry in dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                shape = list(entry.size)
                axis = shape.index(max(shape))
                assert shape[axis] % WORLD == 0, key
                shape[axis] //= WORLD
                tensors[key] = ShardedTensor.from_rank_offsets(
                    key, torch.zeros(shape, dtype=entry.properties.dtype), (axis, self.rank, WORLD))
            else:
                name, place, grid = re.fullmatch(r"(.*)/shard_([\d.]+)_([\d.]+)", key).groups()
                numbers = [tuple(map(int, part.split("."))) for part in (grid, place)]
                objects[key] = ShardedObject(name, None, *numbers, replica_id=self.rank)
        return tensors, objects

    def save_again(self, checkpoint, again):
        from megatron.core import dist_checkpointing

        tensors, objects = self.halves(checkpoint)
        loaded = dist_checkpointing.load({"tensors": tensors, "objects": objects}, str(checkpoint))
        self.result["halves"] = [(key, part.global_slice(), loaded["tensors"][key]) for key, part in tensors.items()]
        self.result["objects"] = loaded["objects"]
        self.result["common"] = {key: value for key, value in loaded.items() if key not in ("tensors", "objects")}
        tensors, objects = self.halves(checkpoint)
        for key, value in loaded["tensors"].items():
            tensors[key].data = value
        for key, value in loaded["objects"].items():
            objects[key].data = value
        self.save({"tensors": tensors, "objects": objects, **self.result["common"]}, again)

    def save_made(self, prefixes, folder):
        """A checkpoint of made weights, with the objects that linear layers have."""
        tensors, objects = self.wanted(prefixes)
        for part in tensors:
            prefix = max((p for p in prefixes.values() if part.key.startswith(p)), key=len)
            part.data = made(part.key[len(prefix):], part.global_shape)[part.global_slice()].contiguous()
        self.save({"parts": dict(enumerate(tensors + objects)), "iteration": 7, "checkpoint_version": 3.0}, folder)

    def describe_optimizer(self):
        """What its optimizer of the language model keeps, by how: tensors with shapes, objects without."""
        from megatron.core.dist_checkpointing.dict_utils import nested_values
        from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from torch.overrides import TorchFunctionMode

        class OnCpu(TorchFunctionMode):
            def __torch_function__(self, function, _, args=(), kwargs=None):
                kwargs = dict(kwargs or {})
                if kwargs.get("device") == "cuda":
                    kwargs["device"] = "cpu"
                result = function(*args, **kwargs)
                names_type = function is torch.Tensor.type and len(args) == 1
                return result.replace("torch.", "torch.cuda.") if names_type else result

        model = self.models["language"]
        parallel = DistributedDataParallel(model.config, DistributedDataParallelConfig(use_distributed_optimizer=True),
                                           model)
        with OnCpu():
            optimizer = get_megatron_optimizer(
                OptimizerConfig(optimizer="adam", lr=1e-3, use_distributed_optimizer=True), [parallel])
            for part in optimizer.chained_optimizers:
                part._init_optimizer_states_with_dummy_values()
        self.result["groups"] = [group for part in optimizer.chained_optimizers
                                 for group in part.state_dict()["optimizer"]["param_groups"]]
        for kind in ("fully_reshardable", "dp_reshardable"):
            state = optimizer.sharded_state_dict(
                model.sharded_state_dict(prefix=OURS["language"]),
                metadata={"distrib_optim_sharding_type": kind, "chained_optim_avoid_prefix": True})
            apply_factories(state)
            parts = list(nested_values(state))
            self.result[kind] = (
                {part.key: tuple(part.global_shape) for part in parts if isinstance(part, ShardedTensor)},
                {part.unique_key for part in parts if isinstance(part, ShardedObject)})

    def save(self, state, folder):
        import torch.distributed as dist
        from megatron.core import dist_checkpointing

        folder.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        dist_checkpointing.save(state, str(folder))


def work(folder):
    """Both ranks: the second one is a fork that has the imports already."""
    stub_cuda()
    stub_mamba_kernels()
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    import megatron.core.models.mamba.mamba_model  # noqa: F401
    import megatron.core.optimizer  # noqa: F401

    folder = Path(folder)
    child = os.fork()
    number = 1 if child == 0 else 0
    # otherwise made by a spawned process, which imports everything once more
    filesystem_async._results_queue = multiprocessing.get_context("fork").Manager().Queue()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=WORLD)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=WORLD, expert_model_parallel_size=WORLD,
                                             expert_tensor_parallel_size=1)
    rank = Rank(number)
    rank.describe_models()
    rank.describe_scheduler()
    rank.load_into_models(folder / "run" / "iter_0000002")
    rank.save_again(folder / "run" / "iter_0000002", folder / "again" / "iter_0000002")
    rank.save_made(NEMOTRON, folder / "nemotron")
    rank.save_made({name: "model." + prefix for name, prefix in NEMOTRON.items()}, folder / "below_model")
    rank.save_made(OURS, folder / "our_naming" / "iter_0000007")
    rank.describe_optimizer()
    with open(folder / f"result_{number}", "wb") as file:
        pickle.dump(rank.result, file)
    dist.destroy_process_group()
    if child:
        assert os.waitpid(child, 0)[1] == 0


# ---- in the test


def train(*arguments, fails=False):
    run = run_program([os.environ["BRAID"], "train", *map(str, arguments)])
    assert (run.returncode != 0) == fails, run.stdout + run.stderr
    return run.stderr


def metrics(file):
    """What an iteration computes, not how fast."""
    names = ("iteration", "consumed_samples", "lm_loss", "grad_norm", "learning_rate", "seq_load_balancing_loss",
             "skipped")
    return [{name: line[name] for name in names} for line in map(json.loads, file.read_text().splitlines())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Braid's runs: four iterations, saved after two and four; and one iteration of another family."""
    folder = tmp_path_factory.mktemp("checkpoints")
    train(*VLM, "--bf16", "--train-iters", 4, "--save-interval", 2, "--save", folder / "run", "--metrics-file",
          folder / "metrics")
    train(*LLAVA, "--train-iters", 1, "--save", folder / "llava")
    return folder


@pytest.fixture(scope="module")
def ours(folder):
    return stored(folder / "run" / "iter_0000002")


@pytest.fixture(scope="module")
def megatron(folder):
    """What megatron-core's ranks found."""
    # not as a script: megatron-core spawns processes, and each would run this file's imports again
    ranks = run_program([sys.executable, "-c", f"import {Path(__file__).stem} as test; test.work('{folder}')"],
                        cwd=Path(__file__).parent)
    assert ranks.returncode == 0, ranks.stderr
    return [pickle.loads((folder / f"result_{rank}").read_bytes()) for rank in range(WORLD)]


def assert_parts_of(whole, parts):
    for key, place, part in parts:
        assert torch.equal(part, whole[key][place].to(part.dtype)), key


def assert_covers(whole, ranks, found):
    elements = {}
    for rank in ranks:
        for key, place, _ in rank[found]:
            elements.setdefault(key, torch.zeros(whole[key].shape, dtype=torch.bool))[place] = True
    assert elements.keys() <= whole.keys() and all(covered.all() for covered in elements.values())
    return elements.keys()


def test_folder_is_megatrons(folder):
    assert (folder / "run" / "latest_checkpointed_iteration.txt").read_text() == "4"
    assert (folder / "run" / "iter_0000002" / "metadata.json").read_text() == FORMAT


def test_common_state_is_megatrons(folder, megatron):
    common = torch.load(folder / "run" / "iter_0000002" / "common.pt", weights_only=True)
    assert common["opt_param_scheduler"] == megatron[0]["scheduler"]
    assert type(common["args"]) is dict and common["args"]["consumed_train_samples"] == 8
    assert (common["checkpoint_version"], common["iteration"]) == (3.0, 2)
    assert common["content_metadata"] == {"distrib_optim_sharding_type": "fully_reshardable",
                                          "chained_optim_avoid_prefix": True, "singleton_local_shards": False}


def test_keys_and_shapes_are_those_of_megatrons_models(folder, megatron, ours):
    assert shapes(weights_in(ours)) == megatron[0]["shapes"]["vlm"]
    assert shapes(weights_in(stored(folder / "llava" / "iter_0000001"))) == megatron[0]["shapes"]["llava"]


def test_megatrons_models_load_their_shards(megatron, ours):
    for rank in megatron:
        assert_parts_of(ours, rank["in models"])
    assert assert_covers(ours, megatron, "in models") == weights_in(ours).keys()


def test_megatron_loads_everything(megatron, ours):
    objects = {key: value for key, value in ours.items() if not torch.is_tensor(value)}
    for rank in megatron:
        assert_parts_of(ours, rank["halves"])
        assert {key: [value] for key, value in rank["objects"].items()} == objects
        assert rank["common"]["iteration"] == 2
    assert assert_covers(ours, megatron, "halves") == tensors_in(ours).keys()


def test_run_resumes_from_what_megatron_saved(folder, megatron):
    resumes(folder, folder / "again")


def test_run_resumes_from_what_torch_saved(folder, ours, tmp_path):
    again = tmp_path / "iter_0000002"
    dcp.save(ours, checkpoint_id=again, planner=DefaultSavePlanner(flatten_state_dict=False), no_dist=True)
    shutil.copy(folder / "run" / "iter_0000002" / "common.pt", again)
    resumes(folder, tmp_path)


def resumes(folder, checkpoint):
    (checkpoint / "latest_checkpointed_iteration.txt").write_text("2")
    train(*VLM, "--bf16", "--train-iters", 4, "--load", checkpoint, "--metrics-file", checkpoint / "metrics")
    assert metrics(checkpoint / "metrics") == metrics(folder / "metrics")[2:]


# ---- weights of other programs


def start_from(option, checkpoint, tmp_path, *more):
    """What one iteration that changes nothing makes of the weights in a checkpoint."""
    train(*VLM, *STILL, option, checkpoint, "--save", tmp_path / "out", "--metrics-file", tmp_path / "metrics", *more)
    return stored(tmp_path / "out" / "iter_0000001"), metrics(tmp_path / "metrics")[0]["lm_loss"]


def expected_weights(shapes, *names):
    return {key: made(key[len(prefix):], shape) for name, prefix in OURS.items() for key, shape in shapes.items()
            if name in names and key.startswith(prefix)}


@pytest.fixture(scope="module")
def our_naming(folder, megatron, tmp_path_factory):
    """The same weights under Braid's keys: the state after them, saved by bucket, and the loss."""
    (folder / "our_naming" / "latest_checkpointed_iteration.txt").write_text("7")
    return start_from("--load", folder / "our_naming", tmp_path_factory.mktemp("ours"), "--finetune",
                      "--checkpoint.fully_reshardable=false")


@pytest.mark.parametrize("option, naming", [("--load-nemotron-checkpoint", "nemotron"),
                                            ("--checkpoint.init.nemotron", "below_model")])
def test_weights_of_a_nemotron_checkpoint(folder, megatron, our_naming, tmp_path, option, naming):
    state, loss = start_from(option, folder / naming, tmp_path)
    expected = expected_weights(megatron[0]["shapes"]["vlm"], *OURS)
    assert weights_in(state).keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(state[key], value), key
        branch = "language" if key.startswith(OURS["language"]) else "images"
        if not key.endswith("expert_bias"):
            assert torch.equal(state[f"mimo.{branch}.optimizer.state.param.{key}"], value), key
    assert loss == our_naming[1]


def test_vision_of_a_nemotron_checkpoint(folder, megatron, tmp_path):
    state, _ = start_from("--load-vision-from", folder / "below_model", tmp_path)
    vision = expected_weights(megatron[0]["shapes"]["vlm"], "vision")
    others = expected_weights(megatron[0]["shapes"]["vlm"], "language", "projection")
    assert all(torch.equal(state[key], value) for key, value in vision.items())
    assert not any(torch.equal(state[key], value) for key, value in others.items())


def test_vision_and_language_of_two_checkpoints(folder, megatron, tmp_path):
    """The language model is from a checkpoint that has nothing else, and so no prefix in its keys."""
    prefix = NEMOTRON["language"]
    alone = {key[len(prefix):]: value for key, value in tensors_in(stored(folder / "nemotron")).items()
             if key.startswith(prefix)}
    dcp.save(alone, checkpoint_id=tmp_path / "alone", no_dist=True)
    state, _ = start_from("--checkpoint.init.vision", folder / "below_model", tmp_path, "--checkpoint.init.language",
                          tmp_path / "alone")
    both = expected_weights(megatron[0]["shapes"]["vlm"], "vision", "language")
    others = expected_weights(megatron[0]["shapes"]["vlm"], "projection")
    assert all(torch.equal(state[key], value) for key, value in both.items())
    assert not any(torch.equal(state[key], value) for key, value in others.items())


def test_nemotron_checkpoint_that_does_not_fit(ours, tmp_path):
    weights = {key.replace(OURS[name], NEMOTRON[name]): value for name in OURS
               for key, value in weights_in(ours).items() if key.startswith(OURS[name])}
    lacking, other = "language_model.decoder.layers.1.self_attention.linear_proj.weight", "vision_model.class_token"
    del weights[lacking]
    weights[other] = torch.zeros(5, 32)
    dcp.save(weights, checkpoint_id=tmp_path / "odd", no_dist=True)
    message = train(*VLM, *STILL, "--load-nemotron-checkpoint", tmp_path / "odd", fails=True)
    assert f"{lacking} is missing" in message
    assert re.search(re.escape(other) + r" is \S*5\D+32\S*, but the model has \S*3\D+32", message)


# ---- optimizers


def of_language(state):
    return {key: value for key, value in state.items() if key.startswith("mimo.language.")}


def test_optimizer_keys_are_megatrons(megatron, ours):
    wanted = {}
    for rank in megatron:
        wanted |= rank["fully_reshardable"][0]
    assert shapes(of_language(ours)) == {"mimo.language." + key: shape for key, shape in wanted.items()}


def test_parameter_groups_are_megatrons(megatron, ours):
    identity = ("wd_mult", "lr_mult", "is_expert_parallel", "is_decoupled_lr", "default_config")
    groups = ours["mimo.language.optimizer.mimo.language.param_groups/shard_0_1"][0]
    assert [{key: group[key] for key in identity} for group in groups] == [
        {key: group[key] for key in identity} for group in megatron[0]["groups"]]
    # the rest is what an optimizer of torch, which megatron-core falls back to, adds
    assert groups[0].keys() == megatron[0]["groups"][0].keys() - {
        "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}


def test_optimizer_keys_by_bucket_are_megatrons(megatron, our_naming):
    wanted = {}
    for rank in megatron:
        wanted |= rank["dp_reshardable"][0]
    assert shapes(of_language(our_naming[0])) == {"mimo.language." + key: shape for key, shape in wanted.items()}
