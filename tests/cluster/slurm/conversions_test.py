"""The table of conversions, tests/cluster/local/conversions.json, under a real Slurm: every rank of every script, a job each,
calls its programs as the table says. launch_test runs the same with stand-ins for Slurm's programs."""
import concurrent.futures
import json
import os
import pathlib
import subprocess

import pytest

from scripts import BRAID

TABLE = pathlib.Path(__file__).parents[1] / "local" / "conversions.json"
PROGRAMS = TABLE.parent / "recorded_programs"
CASES = {case["name"]: case for case in json.loads(TABLE.read_text())["cases"]}
NODES, RANKS_PER_NODE = 2, 2


@pytest.fixture(scope="module")
def jobs(cluster, tmp_path_factory):
    """{name: (job's number, its folder)}, all of them submitted."""
    folders = [tmp_path_factory.mktemp("case") for _ in CASES]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(CASES, pool.map(lambda case, folder: submit(cluster, case, folder), CASES.values(), folders)))


def submit(cluster, case, folder):
    (folder / "sub").mkdir()
    (folder / "record").mkdir()
    (folder / "text").write_text(case.get("text", case.get("run_script", "")))
    command = (["--command-file", "text"] if "text" in case else ["--run-script", "text"] if "run_script" in case else
               ["--", *case["words"]])
    options = ["--nodes", str(NODES), "--gpus-per-node", str(RANKS_PER_NODE), "--partition", "shared",
               "--job-name", "job", "--output", "job.sbatch", *case.get("options", [])]
    subprocess.run([BRAID, "launch", "slurm", *options, *command], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    env = {"PATH": f"{PROGRAMS}:{cluster.env['PATH']}", "PROGRAMS": str(PROGRAMS), "RECORD": str(folder / "record")}
    return cluster.submit(folder / "job.sbatch", "--oversubscribe", env=env), folder


@pytest.mark.parametrize("name", CASES)
def test_every_rank_is_called_as_written(cluster, jobs, name):
    case, (number, folder) = CASES[name], jobs[name]
    job = cluster.wait(number)
    assert job["JobState"] == "COMPLETED", (folder / "logs" / f"job_{number}.log").read_text()
    torchrun, first = "torchrun" in case.get("options", []), "first_phase" in case
    for task in range(NODES if torchrun else NODES * RANKS_PER_NODE):
        values = {"RANK": task, "WORLD_SIZE": NODES * RANKS_PER_NODE, "LOCAL_RANK": task % RANKS_PER_NODE, "NODE": task,
                  "NODES": NODES, "MASTER_ADDR": job["BatchHost"], "MASTER_PORT": 15000 + number % 15000}
        assert calls(folder, int(first), task) == filled_in(case["argv"], values)
    if first:
        assert calls(folder, 0, 0) == filled_in(case["first_phase"], {})


def calls(folder, step, task):
    """[[program, arguments...]] of the recorded programs that a task of a step called."""
    words = (folder / "record" / f"step{step}_task{task}").read_bytes().decode().split("\0")[:-1]
    found = []
    while words:
        size = int(words[0])
        found.append(words[1:size + 1])
        words = words[size + 1:]
    return found


def filled_in(argv, values):
    """The table's calls with {RANK} and the like replaced."""
    def of_word(word):
        for name, value in values.items():
            word = word.replace("{" + name + "}", str(value))
        return word
    return [[of_word(word) for word in call] for call in argv]
