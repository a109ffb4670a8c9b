"""Scripts for the trainer of someone else, which is mounted into a container: on four nodes of a real Slurm, under srun
and under torchrun. A mount namespace with another root stands in for pyxis and Enroot (container/).

The trainer has its own Megatron-LM, a stale experiment and an environment that uv makes; it is started by its script for
one node. uv and wandb are stand-ins that note down who calls them.
"""
import os
import pathlib
import subprocess
import sys

import pytest

from scripts import NODES, RANKS, Job

RUNTIME = pathlib.Path(__file__).parent / "container"
CALLS = "echo $SLURM_STEP_ID $SLURM_PROCID ${0##*/} $* >>/opt/calls\n"
UV = "#!/bin/bash\n" + CALLS + """
case $1 in
  sync) touch .venv ;;
  run)
    [[ $2 == --no-sync && -e .venv && ! -e nemo_experiments/stale ]] || exit 3
    shift 2
    exec "$@" ;;
esac
"""
TRAINER = """
import os, sys, time
from megatron.core import name
rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
os.makedirs("nemo_experiments", exist_ok=True)
open(f"nemo_experiments/{rank}", "w").close()
while len(os.listdir("nemo_experiments")) < world: time.sleep(0.1)
hidden = not os.path.exists(sys.argv[1])
print(" ".join(map(str, ["in", name, os.getcwd(), os.environ["HOME"], hidden, os.environ["IMAGE_HAS"],
                         os.environ["NCCL_NVLS_ENABLE"], world])) + "\\n", end="")
if rank == "0": print("iteration 1/ 1 | lm loss: 1.25 |\\n", end="")
"""
SCRIPT = """#!/bin/bash
export PATH=/opt/work/bin:{python}:$PATH
rm -rf nemo_experiments
wandb login
uv run torchrun --standalone --nproc_per_node=2 pretrain_someone.py {folder}
"""


@pytest.fixture(scope="module", autouse=True)
def namespaces():
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    if subprocess.run(["unshare", "--mount", *as_root, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not allow mount namespaces")


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def submitted(cluster, folder, style):
    """The job of the trainer in folder/code; the image is a file beside it."""
    code, image = folder / "code", folder / "image.sqsh"
    write(code / "bin/uv", UV)
    write(code / "bin/wandb", "#!/bin/bash\n" + CALLS)
    write(code / "pretrain_someone.py", TRAINER)
    write(code / "3rdparty/Megatron-LM/megatron/core/__init__.py", "name = 'megatron'\n")
    write(code / "nemo_experiments/stale", "")
    python = pathlib.Path(sys.executable).parent
    write(code / "run.sh", SCRIPT.format(python=python, folder=folder))
    write(folder / "calls", "")
    (folder / "root").mkdir()
    write(image, "\n".join(["/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc", "/proc", "/dev", sys.prefix]) + "\n")
    write(folder / "image.sqsh.env", "HOME=/root\nIMAGE_HAS=image\nNCCL_NVLS_ENABLE=image\nPATH=/usr/bin:/bin\n")
    return Job(cluster, code, "--container", image, "--mount", f"{folder}:/opt", "--mount", f"{code}:/opt/work",
               "--workdir", "/opt/work", "--mpi", "none", "--style", style, "--command-file", "/opt/work/run.sh",
               env={"PATH": f"{RUNTIME}:{cluster.env['PATH']}", "IMAGE_HAS": "host"})


@pytest.fixture(scope="module")
def jobs(cluster, tmp_path_factory):
    """{style: its job}, both under way."""
    return {style: submitted(cluster, tmp_path_factory.mktemp(style), style) for style in ("srun", "torchrun")}


@pytest.mark.parametrize("style", ["srun", "torchrun"])
def test_a_mounted_trainer_runs_on_four_nodes(cluster, jobs, style):
    job = jobs[style]
    ended = cluster.wait(job.number)
    assert ended["JobState"] == "COMPLETED", job.log()
    assert (ended["WorkDir"], ended["StdOut"]) == (str(job.folder), str(job.log_file))
    says = f"in megatron /opt/work /root True image 0 {RANKS}"
    lines = [line for lines in job.lines_of_ranks().values() for line in lines]
    assert lines.count(says) == RANKS, job.log()
    assert "== the first losses\n0: iteration 1/ 1 | lm loss: 1.25 |" in job.log()


@pytest.mark.parametrize("style, tasks", [("srun", RANKS), ("torchrun", NODES)])
def test_what_must_happen_once_happens_once(cluster, jobs, style, tasks):
    job = jobs[style]
    cluster.wait(job.number)
    calls = (job.folder.parent / "calls").read_text().splitlines()
    assert calls[:2] == ["0 0 wandb login", "0 0 uv sync --inexact"], job.log()
    assert {call.split()[1] for call in calls[2:]} == {str(task) for task in range(tasks)}
    assert all(call.split()[0] == "1" and call.split()[2:5] == ["uv", "run", "--no-sync"] for call in calls[2:])
    assert len(calls) == 2 + tasks
    assert sorted(path.name for path in (job.folder / "nemo_experiments").iterdir()) == [str(i) for i in range(RANKS)]
