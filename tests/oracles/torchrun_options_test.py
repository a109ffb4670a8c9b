"""torchrun's command line as Braid reads it, against torch's own parser: every option in every spelling, with and
without `=`, and every abbreviation that argparse accepts, must end where torch says that the program begins.

    BRAID=build/braid python -m pytest tests/oracles/torchrun_options_test.py
"""
import os
import random
import re
import shlex

import pytest
from torch.distributed.run import get_args_parser

from programs import run_program

BRAID = os.environ["BRAID"]
# Not among the random ones: another program, other ways to run it, refused with srun, or ends the parser.
SPECIAL = {"module", "no_python", "help", "virtual_local_rank"}
VALUES = {"nproc_per_node": "8", "nnodes": "1", "max_restarts": "3", "monitor_interval": "0.5", "start_method": "fork",
          "node_rank": "0", "master_port": "6000", "numa_binding": "node"}


def spellings(action):
    """All beginnings of its names that argparse takes for it."""
    parser = get_args_parser()
    for name in action.option_strings:
        yield name
        for end in range(3, len(name)) if name.startswith("--") else ():
            if len(parser._get_option_tuples(name[:end])) == 1:
                yield name[:end]


def options():
    """Lists of words, each one option."""
    for action in get_args_parser()._actions:
        if not action.option_strings or action.dest in SPECIAL:
            continue
        value = VALUES.get(action.dest, "x.py")  # the most confusing one
        for name in spellings(action):
            if action.nargs == 0:
                yield [name]
            else:
                yield [name, value]
                yield [f"{name}={value}" if name.startswith("--") else name + value]


def commands():
    """Random command lines that have every option once."""
    every = list(options())
    random.Random(3).shuffle(every)
    return [sum(every[i:i + 40], []) for i in range(0, len(every), 40)]


def test_there_are_enough():
    assert len(list(options())) > 300


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words[:3]))
def test_the_program_begins_where_torch_says(words):
    rest = ["train.py", "--nnodes", "7", "-m", "--", "a b"]
    parsed = get_args_parser().parse_args(words + rest)
    assert [parsed.training_script, *parsed.training_script_args] == rest
    assert braid_runs(words + rest) == ["python3", "-u", *rest]


@pytest.mark.parametrize("flags, runs", [(["-m"], ["python3", "-u", "-m"]), (["--module"], ["python3", "-u", "-m"]),
                                         (["--no-python"], []), (["--no_python"], []), (["-mt3"], ["python3", "-u", "-m"])])
def test_how_the_program_is_run(flags, runs):
    rest = ["some.program", "-m", "x"]
    parsed = get_args_parser().parse_args(flags + rest)
    assert parsed.module == ("-m" in runs) and parsed.no_python == (not runs)
    assert braid_runs(flags + rest) == runs + rest


@pytest.mark.parametrize("words", ["--nproc-per-nodes=8 train.py", "--rdzv x train.py", "--standalone=1 train.py",
                                   "-x train.py", "--tee", "--tee 3"])
def test_what_torch_refuses(words):
    with pytest.raises(SystemExit):
        get_args_parser().parse_args(words.split())
    assert launch(words.split()).returncode == 2


def launch(words):
    return run_program([BRAID, "launch", "slurm", "--dry-run", "--", "torchrun", *words])


def braid_runs(words):
    """The last command of a rank in the script that Braid makes of `torchrun WORDS`."""
    run = launch(words)
    assert run.returncode == 0, run.stderr
    return shlex.split(re.search(r"\n([^\n]*)\nEND_OF_RANK_SCRIPT", run.stdout)[1])
