"""Scripts of `braid launch slurm` run over four nodes of a real Slurm: they compute what one host computes, every rank
finds its place, a run that is told to save goes on after a requeue, and `braid doctor` names how a job died.

Jobs wait for each other, for Slurm and for its time limits, so all of them are under way at once, each driven by a
thread; a test looks at what its job's function returned.
"""
import concurrent.futures
import os
import pathlib
import signal
import subprocess

import pytest

from cluster import TIMEOUT_S
from scripts import BRAID, GPUS, NODES, PYTHON, RANKS, Job, local_losses, small_recipe

RECIPES = pathlib.Path(__file__).parents[3] / "recipes"
TRAINING = [RECIPES / "tiny-vlm.yaml", "--encoder-dp", "4", "--train-iters", "3"]
LONG = ["--train-iters", "100000"]
# In one write, since two ranks may share a pipe.
PLACE = """
names = 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'
os.write(1, ('place ' + ' '.join(os.environ[name] for name in names) + '\\n').encode())
"""
WAITS = "import time; print('starts to wait'); time.sleep(200)"
STOPS = """
import signal, sys, time
if 'SLURM_RESTART_COUNT' in os.environ: sys.exit(print('starts again'))
signal.signal(signal.SIG{signal}, lambda *_: sys.exit(print('stops')))
print('starts to wait')
time.sleep(200)
"""
# After all ranks have printed where they are.
RAISES = PLACE + """
import glob, time
if os.environ['RANK'] == '0': print('iteration 1/ 10 | lm loss: 5.0 |')
open(os.environ['RANK'] + '.here', 'w').close()
while len(glob.glob('*.here')) < 8: time.sleep(0.1)
if os.environ['RANK'] == '5': raise ValueError('labels do not fit logits')
time.sleep(100)
"""
COMMENT = 'a b $X "q" #c'
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", str(GPUS)]


def program(folder, text):
    file = folder / "program.py"
    file.write_text("import os\n" + text)
    return file


def braid(cluster, *words, folder=None):
    """The program, on a machine of the cluster."""
    return subprocess.run([BRAID, *map(str, words)], env=cluster.env, cwd=folder, capture_output=True, text=True,
                          timeout=TIMEOUT_S)


# --- what runs concurrently ------------------------------------------------------------------------------------------
def trained_by_srun(cluster, folder):
    job = Job(cluster, folder, *TRAINING)
    return job.end(), job


def trained_by_torchrun(cluster, folder):
    job = Job(cluster, folder, *TRAINING, "--style", "torchrun",
              env={"PATH": f"{os.path.dirname(PYTHON)}:{cluster.env['PATH']}"})
    return job.end(), job


def placed_by_srun(cluster, folder):
    left_over = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "1"}
    job = Job(cluster, folder, "--sbatch", f"--comment={COMMENT}", command=[*TORCHRUN, program(folder, PLACE)],
              address=None, env=left_over)
    return job.end(), job


def braid_placed_by_srun(cluster, folder):
    without = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"
    job = Job(cluster, folder, command=[f"unset {without}; {os.environ['BRAID_WORLD_PROBE']}"], address=None)
    return job.end(), job


def threads_chosen_under_srun(cluster, folder):
    job = Job(cluster, folder, command=[f"unset OMP_NUM_THREADS; {os.environ['BRAID_WORLD_PROBE']} meet"])
    return job.end(), job


def cancelled(cluster, folder):
    job = Job(cluster, folder, small_recipe(folder), *LONG)
    job.wait_for_line("iteration        3/")
    cluster.client("scancel", job.number)
    return job.end(), job


def out_of_time(cluster, folder):
    job = Job(cluster, folder, command=[PYTHON, program(folder, WAITS)])
    job.wait_for_line("starts to wait")
    cluster.client("scontrol", "update", f"JobId={job.number}", "EndTime=now+5seconds")  # it looks every 30 s
    return job.end(), job


def crashed(cluster, folder):
    job = Job(cluster, folder, small_recipe(folder), *LONG)
    job.wait_for_line("iteration        3/")
    os.kill(job.rank(5), signal.SIGSEGV)
    return job.end(), job


def raised_by_srun(cluster, folder):
    job = Job(cluster, folder, command=[PYTHON, program(folder, RAISES)])
    return job.end(), job


def raised_under_torchrun(cluster, folder):
    job = Job(cluster, folder, "--style", "torchrun", command=[*TORCHRUN, program(folder, RAISES)])
    return job.end(), job


def requeued(cluster, folder):
    job = Job(cluster, folder, small_recipe(folder), "--train-iters", "40", "--save", "ckpt", "--load", "ckpt",
              "--requeue")
    job.wait_for_line("iteration        3/")
    cluster.client("scancel", "--batch", "--signal=USR1", job.number)  # as Slurm does shortly before the end
    job.wait_for_line("attempt 2")
    return job.end(), job


def warned(cluster, folder, stop_signal):
    """Slurm itself detects that the end is nearer than the two minutes that the script requested."""
    job = Job(cluster, folder, "--requeue", "--stop-signal", stop_signal,
              command=[PYTHON, program(folder, STOPS.format(signal=stop_signal))])
    job.wait_for_line("starts to wait")
    cluster.client("scontrol", "update", f"JobId={job.number}", "EndTime=now+100seconds")
    return job.end(), job


def warned_by_usr1(cluster, folder):
    return warned(cluster, folder, "USR1")


def warned_by_term(cluster, folder):
    return warned(cluster, folder, "TERM")


UNDER_WAY = [out_of_time, warned_by_usr1, warned_by_term, requeued, trained_by_srun, trained_by_torchrun, cancelled,
             crashed, placed_by_srun, braid_placed_by_srun, threads_chosen_under_srun, raised_by_srun,
             raised_under_torchrun]


@pytest.fixture(scope="module")
def outcome(cluster, tmp_path_factory):
    """outcome(f): the state in which f's job ended, and the job."""
    pool = concurrent.futures.ThreadPoolExecutor(len(UNDER_WAY))
    started = {each: pool.submit(each, cluster, tmp_path_factory.mktemp(each.__name__)) for each in UNDER_WAY}
    yield lambda each: started[each].result()
    pool.shutdown(wait=False, cancel_futures=True)


# --- ended well ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("style", [trained_by_srun, trained_by_torchrun])
def test_losses_are_those_of_one_host(outcome, style, one_host):
    state, job = outcome(style)
    assert state == "COMPLETED", job.log()
    assert job.losses() == one_host


@pytest.fixture(scope="module")
def one_host(tmp_path_factory):
    return local_losses(tmp_path_factory.mktemp("local"), *TRAINING)


@pytest.mark.parametrize("style, end, address", [
    (placed_by_srun, "COMPLETED", "n1"),
    (raised_under_torchrun, "FAILED", "127.0.0.1"),
])
def test_every_rank_finds_its_place(outcome, style, end, address):
    state, job = outcome(style)
    assert state == end, job.log()
    port = 15000 + job.number % 15000
    places = {task: sorted(line for line in lines if line.startswith("place"))
              for task, lines in job.lines_of_ranks().items()}
    expected = {}
    for rank in range(RANKS):
        line = f"place {rank} {RANKS} {rank % GPUS} {GPUS} {address} {port}"
        expected.setdefault(rank * len(places) // RANKS, []).append(line)
    assert places == expected


def test_further_options_reach_sbatch_as_they_are(cluster, outcome):
    _, job = outcome(placed_by_srun)
    assert f"Comment={COMMENT}" in cluster.client("scontrol", "show", "job", job.number)


def test_braid_finds_its_place_by_itself(outcome):
    state, job = outcome(braid_placed_by_srun)
    assert state == "COMPLETED", job.log()
    port = 15000 + job.number % 15000
    assert job.lines_of_ranks() == {
        rank: [f"rank {rank} of {RANKS}, {rank % GPUS} of {GPUS} here, meets at n1:{port}"] for rank in range(RANKS)}


def test_ranks_share_the_cpus_of_their_host(outcome):
    """Slurm binds no rank here, and all its nodes are this host."""
    state, job = outcome(threads_chosen_under_srun)
    assert state == "COMPLETED", job.log()
    cpus = len(os.sched_getaffinity(0))
    for lines in job.lines_of_ranks().values():
        threads = [int(line.removeprefix("threads: ")) for line in lines if line.startswith("threads: ")]
        assert len(threads) == 1 and 1 <= threads[0] <= max(1, cpus // RANKS), job.log()


def test_a_requeued_run_goes_on_where_it_was(cluster, outcome, tmp_path):
    state, job = outcome(requeued)
    assert state == "COMPLETED", job.log()
    assert cluster.job(job.number)["Restarts"] == "1"
    assert "run ended              SIGUSR1" in job.log()
    assert "loaded ckpt/iter_" in job.log()
    assert job.losses() == local_losses(tmp_path, small_recipe(tmp_path), "--train-iters", "40")


@pytest.mark.parametrize("signal_of", [warned_by_usr1, warned_by_term])
def test_slurm_warns_in_time_and_every_rank_hears_it(outcome, signal_of):
    state, job = outcome(signal_of)
    assert state == "COMPLETED", job.log()
    assert job.lines_of_ranks() == {rank: ["starts to wait", "stops", "starts again"] for rank in range(RANKS)}


# --- monitored -------------------------------------------------------------------------------------------------------
def test_status_and_tail_say_how_far_a_job_is(cluster, outcome):
    _, job = outcome(trained_by_srun)
    status = braid(cluster, "launch", "status", job.number).stdout
    assert status.startswith(f"job {job.number} (job): COMPLETED, 00:")
    assert f"log: {job.log_file} (last written " in status
    assert f"iteration 3 of 3 (100.0 %), lm loss {float(job.losses()[-1][1]):.4f}, " in status
    assert "doctor" not in status
    assert braid(cluster, "launch", "tail", job.number, "-n", "100000").stdout == job.log()


def test_status_of_a_job_that_failed_names_the_doctor(cluster, outcome):
    _, job = outcome(raised_by_srun)
    assert f"why it ended: {BRAID} doctor {job.log_file} --exit-code " in braid(
        cluster, "launch", "status", job.number).stdout


def test_without_a_partition_it_says_what_there_is(cluster, tmp_path):
    refused = braid(cluster, "launch", "slurm", "--nodes", "4", "--", "true", folder=tmp_path)
    assert refused.returncode == 2
    assert "no partition was given" in refused.stderr and "batch (the default, 4 nodes)" in refused.stderr
    assert not list(tmp_path.iterdir())


# --- died ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("death, state, cause, first_rank", [
    (cancelled, "CANCELLED", "cancelled", None),
    (out_of_time, "TIMEOUT", "time-limit", None),
    (crashed, "FAILED", "segfault", 5),
    (raised_by_srun, "FAILED", "python-error", 5),
    (raised_under_torchrun, "FAILED", "python-error", 5),
])
def test_the_doctor_names_the_cause(outcome, death, state, cause, first_rank):
    ended, job = outcome(death)
    assert ended == state, job.log()
    diagnosis = job.diagnosis()
    assert (diagnosis["cause"], diagnosis["first_rank"]) == (cause, first_rank), job.log()


# These come last, since they need all nodes exclusively.
@pytest.fixture
def nobody_else(outcome):
    for each in UNDER_WAY:
        outcome(each)


def test_one_command_submits_and_tail_follows_to_the_end(cluster, nobody_else, tmp_path):
    launched = braid(cluster, "launch", "slurm", "--submit", "--partition", "batch", "--gpus-per-node", "1", "--",
                     "echo rank $RANK begins; sleep 3; echo rank $RANK ends", folder=tmp_path)
    assert launched.returncode == 0, launched.stderr
    number = launched.stdout.splitlines()[0].removeprefix("submitted job ")
    followed = braid(cluster, "launch", "tail", number, folder=tmp_path)
    assert followed.returncode == 0, followed.stderr
    assert "0: rank 0 begins\n0: rank 0 ends\n" in followed.stdout


def test_the_doctor_names_the_node_that_vanished(cluster, nobody_else, tmp_path):
    job = Job(cluster, tmp_path, small_recipe(tmp_path), *LONG, "--no-requeue", partition="batch")
    job.wait_for_line("iteration        3/")
    cluster.kill_node("n3")
    try:
        job.wait_for_line("braid: root cause: rank")
        cluster.declare_dead("n3")
        assert job.end() == "NODE_FAIL", job.log()
        diagnosis = job.diagnosis()
        assert (diagnosis["cause"], diagnosis["first_host"]) == ("node-failure", "n3"), job.log()
        assert diagnosis["first_rank"] in (4, 5), job.log()
    finally:  # the other tests need it
        cluster.start_node("n3")
        cluster.wait_for_node("n3")


def test_the_doctor_names_a_preemption(cluster, nobody_else, tmp_path):
    job = Job(cluster, tmp_path, command=[PYTHON, program(tmp_path, WAITS)], partition="spare")
    job.wait_for_line("starts to wait")
    cluster.submit("#!/bin/sh\n", "--partition=urgent", f"--nodes={NODES}", "--exclusive", "--output=/dev/null")
    assert job.end() == "PREEMPTED", job.log()
    diagnosis = job.diagnosis()
    assert (diagnosis["cause"], diagnosis["first_rank"]) == ("preempted", None), job.log()
