"""Scripts of `braid launch slurm` as jobs on the test's cluster, and what became of them."""
import json
import os
import pathlib
import re
import subprocess
import sys

BRAID = os.environ["BRAID"]
PYTHON = sys.executable
NODES, GPUS = 4, 2
RANKS = NODES * GPUS
HERE = "127.0.0.1"  # nodes' names do not resolve

# As small as possible for eight ranks: most of a job's time is its start.
RECIPE = """
topology:
  modules:
    images: {kind: encoder, dp: 4}
    language: {tp: 2, dp: 2}
model: {dtype: float32, language: {pattern: "*-"}, images: {encoder: {layers: 1}}}
data: {sequence_length: 32}
train: {iterations: 4, micro_batch: 2, global_batch: 8, lr: 1e-2}
log: {interval: 1}
dist: {device: cpu}
"""


class Job:
    """A script made by `braid launch slurm WORDS` in a folder of its own, submitted where jobs share nodes. Ranks meet
    at `address`; without one, where the script says."""

    def __init__(self, cluster, folder, *words, command=(), env={}, address=HERE, partition="shared", gpus=GPUS):
        self.cluster, self.folder = cluster, folder
        script = folder / "job.sbatch"
        meeting_point = ["--env", f"MASTER_ADDR={address}"] if address else []
        launch = [BRAID, "launch", "slurm", *words, *meeting_point, "--nodes", NODES, "--gpus-per-node", gpus, "--job-name", "job",
                  "--partition", partition, "--output", script, *(["--", *command] if command else [])]
        subprocess.run([str(word) for word in launch], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        # --exclusive, which the script asks for, would take all GPUs of a node.
        sharing = ["--oversubscribe"] if partition == "shared" else []
        self.number = cluster.submit(script, *sharing, env=env)
        self.log_file = folder / "logs" / f"job_{self.number}.log"

    def log(self):
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def losses(self):
        return losses(self.log_file.with_suffix(".jsonl"))

    def wait_for_line(self, text):
        self.cluster.wait_until(lambda: text in self.log(), f"'{text}' in {self.log_file}")

    def rank(self, number):
        """The rank's process id."""
        return self.cluster.tasks(self.number)[number]

    def end(self):
        return self.cluster.wait(self.number)["JobState"]

    def diagnosis(self):
        """The doctor's, of a log in which Braid's ranks are on the nodes they ran on, not all on this host."""
        def on_its_node(found):
            rank = int(found[1])
            return f"rank {rank} (host n{rank // GPUS + 1}"
        log = re.sub(r"\brank (\d+) \(host [^,]+", on_its_node, self.log())
        doctor = subprocess.run([BRAID, "doctor", "-", "--json"], input=log, stdout=subprocess.PIPE, text=True)
        return json.loads(doctor.stdout)

    def lines_of_ranks(self):
        """{task: [lines]} as srun --label marks them, without those of Slurm itself."""
        found = {}
        for line in self.log().splitlines():
            task, colon, text = line.partition(": ")
            if colon and task.isdigit() and not text.startswith("slurmstepd"):
                found.setdefault(int(task), []).append(text)
        return found


def losses(metrics_file):
    """[(iteration, loss)], the loss with all its digits. A line that does not end was cut when its run was killed."""
    lines = [json.loads(line) for line in pathlib.Path(metrics_file).read_text().splitlines() if line.endswith("}")]
    return [(line["iteration"], repr(line["lm_loss"])) for line in lines]


def local_losses(folder, *words):
    """Those of the same run on Braid's own launcher."""
    run = subprocess.run([BRAID, "train", *map(str, words), "--metrics-file", folder / "local.jsonl"], text=True,
                         capture_output=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return losses(folder / "local.jsonl")


def small_recipe(folder):
    recipe = folder / "small.yaml"
    recipe.write_text(RECIPE)
    return recipe
