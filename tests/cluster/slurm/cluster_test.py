"""The cluster of the other tests is a real one: several nodes with GPUs, which can die and come back, and it leaves
nothing behind."""
import os
import signal
import subprocess
import sys

import keeper
from cluster import TIMEOUT_S

WHERE_AM_I = """#!/bin/sh
#SBATCH --nodes=4 --ntasks-per-node=2 --gpus-per-node=2 --exclusive
srun --label sh -c 'echo $SLURMD_NODENAME $SLURM_LOCALID $CUDA_VISIBLE_DEVICES'
"""
SLEEPS = """#!/bin/sh
#SBATCH --nodes=4 --ntasks-per-node=1
srun sleep 1000
"""
# A test run that is killed in the middle of a job, and prints which processes it had.
KILLED = """
import os, signal, keeper
from cluster import *
running = Cluster()
running.start()
job = running.submit('''{script}''', "--output=/dev/null")
running.wait_until(lambda: len(running.tasks(job)) == 4, "four tasks")
print(running.folder, running.keeper.pid, *keeper.descendants(running.keeper.pid), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_tasks_are_on_four_nodes_with_their_gpus(cluster, tmp_path):
    job = cluster.submit(WHERE_AM_I, "--output", tmp_path / "log")
    assert cluster.wait(job)["JobState"] == "COMPLETED"
    expected = [f"{rank}: n{rank // 2 + 1} {rank % 2} 0,1" for rank in range(8)]
    assert sorted((tmp_path / "log").read_text().splitlines()) == expected


def test_a_node_that_vanishes_ends_its_job_and_can_come_back(cluster, tmp_path):
    job = cluster.submit(SLEEPS, "--no-requeue", "--output", tmp_path / "log")
    cluster.wait_until(lambda: len(cluster.tasks(job)) == 4, "four tasks")
    cluster.kill_node("n3")
    assert sorted(cluster.tasks(job)) == [0, 1, 3]
    cluster.declare_dead("n3")
    assert cluster.wait(job)["JobState"] == "NODE_FAIL"
    assert "Node failure on n3" in (tmp_path / "log").read_text()
    cluster.start_node("n3")
    cluster.wait_for_node("n3")


def test_nothing_is_left_of_a_test_run_that_is_killed(cluster):
    run = subprocess.run([sys.executable, "-c", KILLED.format(script=SLEEPS)], cwd=os.path.dirname(__file__),
                         stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert run.returncode == -signal.SIGKILL
    folder, *pids = run.stdout.split()
    assert len(pids) > 10
    cluster.wait_until(lambda: keeper.parents().keys().isdisjoint(map(int, pids)), "the end of all its processes")
    assert not os.path.exists(folder)
