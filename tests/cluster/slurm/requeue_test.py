"""Jobs that are killed and requeued again and again: each is one run with one loss curve, and was initialized once.

Slurm waits some seconds before it starts a requeued job, so eight jobs are under way at once. BRAID_TEST_KILLS=40 kills
each of them 40 times instead of 5.
"""
import concurrent.futures
import os
import random
import subprocess
import time

import pytest

from cluster import kill
from scripts import BRAID, RECIPE, Job, local_losses, losses

JOBS_PER_LAYOUT, KILLS = 2, int(os.environ.get("BRAID_TEST_KILLS", 5))
# Four ranks, one per node; the learning rate does not depend on the length of the run.
SMALL = RECIPE.replace("images: {kind: encoder, dp: 4}", "images: {kind: encoder, dp: 2}").replace("{tp: 2, dp: 2}",
                                                                                                   "{dp: 2}")
LAYOUTS = {"replicas": [], "split": ["--llm-tp", "2", "--llm-dp", "1"],
           "colocated": ["--topology.colocated", "true", "--encoder-dp", "4", "--llm-tp", "2"],
           "few": ["--encoder-dp", "1", "--llm-dp", "3", "--global-batch-size", "12"]}


def killed_and_requeued(cluster, folder, words, seed):
    job = Job(cluster, folder, *words, "--train-iters", "1000000", "--save", "ckpt", "--save-interval", "4",
              "--checkpoint.keep_last", "2", "--requeue", gpus=1)
    moments = random.Random(seed)
    job.wait_for_line("saved iteration ")  # a run that has saved nothing would begin anew
    for attempt in range(1, KILLS + 1):
        job.wait_for_line(f"attempt {attempt}, ")
        time.sleep(moments.uniform(0, 3))  # in the preparation, the start, an iteration or a save
        tasks = list(cluster.tasks(job.number).values())
        for pid in tasks if attempt % 3 else tasks[:1]:  # all ranks at once, or one, and the others end themselves
            kill(pid)
        cluster.wait_until(lambda: requeued(cluster, job), f"job {job.number} is requeued")
    job.wait_for_line(f"attempt {KILLS + 1}, ")
    saves = job.log().count("saved iteration ")
    cluster.wait_until(lambda: job.log().count("saved iteration ") > saves, "one more save")
    cluster.client("scancel", job.number)
    job.end()
    return job


def requeued(cluster, job):
    """Slurm refuses while the job ends."""
    try:
        cluster.client("scontrol", "requeue", job.number)
    except RuntimeError:
        return False
    return True


def curve_of(job):
    """{iteration: {losses}}, of all starts of the job."""
    curve = {}
    for iteration, loss in losses(job.log_file.with_suffix(".jsonl")):
        curve.setdefault(iteration, set()).add(loss)
    return curve


@pytest.fixture(scope="module")
def runs(cluster, tmp_path_factory):
    """{layout: (words of the command, futures of its jobs)}"""
    source = tmp_path_factory.mktemp("source")
    recipe = source / "recipe.yaml"
    recipe.write_text(SMALL)
    subprocess.run([BRAID, "train", recipe, "--train-iters", "2", "--save", source / "ckpt"], check=True,
                   stdout=subprocess.DEVNULL)
    pool = concurrent.futures.ThreadPoolExecutor(len(LAYOUTS) * JOBS_PER_LAYOUT)
    started = {}
    for name, layout in LAYOUTS.items():
        words = [recipe, *layout, "--checkpoint.init.finetune", source / "ckpt"]
        started[name] = words, [pool.submit(killed_and_requeued, cluster, tmp_path_factory.mktemp(name), words,
                                            f"{name}{job}") for job in range(JOBS_PER_LAYOUT)]
    yield started
    pool.shutdown(wait=False, cancel_futures=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_killed_again_and_again_is_one_run(cluster, runs, tmp_path, layout):
    words, started = runs[layout]
    jobs = [each.result() for each in started]
    curves = [curve_of(job) for job in jobs]
    undisturbed = dict(local_losses(tmp_path, *words, "--train-iters", max(map(max, curves))))
    for job, curve in zip(jobs, curves):
        log = job.log()
        assert cluster.job(job.number)["Restarts"] == str(KILLS), log
        assert log.count("initialized the weights of ") == 1, log
        assert log.count(": starts with the weights of ") == 1, log
        assert log.count(": resumes from ckpt/iter_") <= KILLS, log  # some starts were killed before they said so
        assert curve == {iteration: {undisturbed[iteration]} for iteration in range(1, max(curve) + 1)}
