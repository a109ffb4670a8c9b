"""Braid's grids and groups against megatron-core's HyperCommGrid, live.

Seeded random topologies go through `braid plan show RECIPE --json`; for every module the oracle enumerates the
dense and the expert view of the same ranks. Members, order of groups and order of kinds must all agree.

    BRAID=build/braid python -m pytest tests/oracles/hyper_comm_grid_test.py
"""

import json
import os
import random

import pytest

from megatron.core.hyper_comm_grid import HyperCommGrid

from programs import run_program

TOPOLOGIES = 100
DENSE = ["tp", "cp", "dp", "pp"]
EXPERT = ["expt_tp", "ep", "expt_dp", "pp"]
# In the order in which Megatron's MIMO training creates them; the last one is Braid's own: a replica, which shares a batch.
KINDS = [
    ("dense", ["tp"]),
    ("dense", ["cp"]),
    ("dense", ["pp"]),
    ("dense", ["dp"]),
    ("dense", ["dp", "cp"]),
    ("dense", ["tp", "cp"]),
    ("expert", ["ep"]),
    ("expert", ["expt_tp"]),
    ("expert", ["expt_dp"]),
    ("dense", ["tp", "pp"]),
    ("dense", ["tp", "cp", "dp"]),
    ("dense", ["tp", "cp", "pp", "dp"]),
    ("expert", ["expt_tp", "ep"]),
    ("expert", ["expt_tp", "ep", "pp"]),
    ("dense", ["tp", "cp", "pp"]),
]


def divisors(n):
    return [i for i in range(1, n + 1) if n % i == 0]


def random_module(rng, dp):
    sizes = {"tp": rng.choice([1, 2, 3, 4]), "cp": rng.choice([1, 1, 2, 3]), "dp": dp, "pp": rng.choice([1, 2, 3])}
    stage = sizes["tp"] * sizes["cp"] * sizes["dp"]
    sizes["expt_tp"] = rng.choice(divisors(stage))
    sizes["ep"] = rng.choice(divisors(stage // sizes["expt_tp"]))
    sizes["expt_dp"] = stage // sizes["expt_tp"] // sizes["ep"]
    return sizes


def size_of(module):
    return module["tp"] * module["cp"] * module["dp"] * module["pp"]


def random_topology(seed):
    """Two modules, the second right behind the first, in either order of ranks; or one module alone."""
    rng = random.Random(seed)
    language = random_module(rng, dp=rng.choice([1, 2, 3, 4, 6]))
    images = random_module(rng, dp=rng.choice(divisors(language["dp"])))
    if rng.random() < 0.1:
        return {"language": dict(language, rank_offset=0)}
    if rng.random() < 0.5:
        return {"images": dict(images, rank_offset=0), "language": dict(language, rank_offset=size_of(images))}
    return {"images": dict(images, rank_offset=size_of(language)), "language": dict(language, rank_offset=0)}


def recipe_of(topology):
    lines = ["topology:", "  modules:"]
    for name, module in topology.items():
        kind = "language" if name == "language" else "encoder"
        fields = ", ".join(f"{key}: {value}" for key, value in module.items())
        lines.append(f"    {name}: {{kind: {kind}, {fields}}}")
    lines.append(f"train: {{micro_batch: 1, global_batch: {topology['language']['dp']}}}")
    lines.append(f"model: {{language: {{experts: {topology['language']['ep']}}}}}")
    return "\n".join(lines) + "\n"


def plan_of(topology, folder):
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe_of(topology))
    result = run_program([os.environ["BRAID"], "plan", "show", str(recipe), "--json"])
    assert result.returncode == 0, f"{recipe.read_text()}\n{result.stderr}"
    return json.loads(result.stdout)


@pytest.fixture(scope="module", params=range(TOPOLOGIES))
def planned(request, tmp_path_factory):
    """A topology and what braid makes of it, computed once for all tests."""
    topology = random_topology(request.param)
    return topology, plan_of(topology, tmp_path_factory.mktemp("plan"))


def oracle_views(topology, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(sum(size_of(module) for module in topology.values())))
    return {
        name: {
            "dense": HyperCommGrid([module[dim] for dim in DENSE], DENSE, rank_offset=module["rank_offset"]),
            "expert": HyperCommGrid([module[dim] for dim in EXPERT], EXPERT, rank_offset=module["rank_offset"]),
        }
        for name, module in topology.items()
    }


def oracle_groups(views):
    """All groups of all modules in creation order."""
    groups = []
    for name, grids in views.items():
        for view, dims in KINDS:
            _, key = grids[view]._order_dims(dims)
            groups += [{"module": name, "key": key, "ranks": ranks} for ranks in grids[view].get_rank_enum(dims)]
    return groups


def test_groups_and_their_order(planned, monkeypatch):
    topology, plan = planned
    assert plan["groups"] == oracle_groups(oracle_views(topology, monkeypatch))


def test_coordinates_of_every_rank(planned, monkeypatch):
    """A rank's coordinate in a dimension is its index in its group over that dimension alone."""
    topology, plan = planned
    views = oracle_views(topology, monkeypatch)
    assert [module["name"] for module in plan["modules"]] == list(topology)
    for module in plan["modules"]:
        first, size = module["rank_offset"], size_of(topology[module["name"]])
        assert [rank["global_rank"] for rank in module["ranks"]] == list(range(first, first + size))
        for view, dims in (("dense", DENSE), ("expert", EXPERT)):
            grid = views[module["name"]][view]
            assert list(module[view].items()) == list(zip(dims, grid.shape))
            expected = {rank: {} for rank in range(first, first + size)}
            for dim in dims:
                for group in grid.get_rank_enum([dim]):
                    for index, rank in enumerate(group):
                        expected[rank][dim] = index
            assert {rank["global_rank"]: rank[view] for rank in module["ranks"]} == expected
