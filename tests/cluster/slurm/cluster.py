"""A real Slurm on this host: its own munged, slurmctld and virtual nodes n1 to n4 with pretended GPUs, all in one
temporary folder, on free ports, as whoever runs it. Nothing outside the folder is touched, so nodes' names do not
resolve: jobs that connect want MASTER_ADDR=127.0.0.1.
"""
import json
import os
import pathlib
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import keeper

NODES = ("n1", "n2", "n3", "n4")
GPUS_PER_NODE = 8
TIMEOUT_S = 900  # for hangs; a busy machine may be slow
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
FINAL_STATES = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
                "TIMEOUT"}

# The rendezvous port follows from the job's number, so two concurrent test runs use different numbers. A requeued job
# waits until the credentials of its first start have expired. Slurm always checks time limits every 30 s.
# In `shared`, jobs that are submitted with --oversubscribe run concurrently while there are free GPUs. `urgent`
# preempts the nodes of `batch` and `spare`, whose jobs are requeued or cancelled.
SLURM_CONF = """
ClusterName=braid
FirstJobId={first_job}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=30
SlurmctldTimeout=10
KillWait=2
InactiveLimit=0
EnforcePartLimits=ALL
GresTypes=gpu
{nodes}
PartitionName=batch Nodes=ALL Default=YES
PartitionName=shared Nodes=ALL OverSubscribe=FORCE:16 PreemptMode=OFF
PartitionName=spare Nodes=ALL PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL PriorityTier=9
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 RealMemory=1000 Gres=gpu:{gpus}"


def missing_programs():
    return [program for program in PROGRAMS if not shutil.which(program, path=search_path())]


def search_path():
    return os.environ["PATH"] + ":/usr/sbin:/sbin"  # not every user's PATH has the daemons


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def environment_of(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


class Cluster:
    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="braid-slurm-", dir="/tmp"))  # a socket's path is short
        self.env = {**{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))},
                    "PATH": search_path(), "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.node_pids = {}
        self.stopped = False
        self.keeper = subprocess.Popen([sys.executable, keeper.__file__, self.folder], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True, start_new_session=True)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            for log in self.folder.glob("*.log"):
                print(f"== {log}\n{log.read_text()[-3000:]}", file=sys.stderr)
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        self._write_configuration()
        self._start_munged()
        self._start("slurmctld", "-D", "-L", self.folder / "slurmctld.log")
        for node in NODES:
            self.start_node(node)
        self.wait_until(lambda: all(self.node_state(node) == "IDLE" for node in NODES), "all nodes are idle")

    def stop(self):
        """Ends every process of the cluster and of its jobs. Threads that wait for one of them get an error."""
        self.stopped = True
        self.keeper.stdin.close()
        self.keeper.wait()

    def wait_until(self, ready, what, timeout=TIMEOUT_S, pause=0.1):
        """Waits until ready() returns a true value, and returns it."""
        end = time.monotonic() + timeout
        while not (answer := ready()):
            if self.stopped:
                raise RuntimeError(f"the cluster was stopped before: {what}")
            if time.monotonic() > end:
                raise TimeoutError(f"not within {timeout} s: {what}")
            time.sleep(pause)
        return answer

    # --- nodes ----------------------------------------------------------------------------------------------------
    def start_node(self, node):
        self.node_pids[node] = self._start("slurmd", "-D", "-N", node, "-L", self.folder / f"slurmd.{node}.log")

    def kill_node(self, node):
        """The node vanishes: its daemon, its steps' daemons and their tasks die before any can report it."""
        tasks = [pid for pid in self._processes() if environment_of(pid).get("SLURMD_NODENAME") == node]
        parent_of = keeper.parents()
        step_daemons = {parent_of.get(pid) for pid in tasks} - {None, self.keeper.pid, *tasks}
        victims = [self.node_pids.pop(node), *step_daemons, *tasks]
        for pid in victims:
            kill(pid)
        self.wait_until(lambda: keeper.parents().keys().isdisjoint(victims), f"the end of {node}'s processes")

    def declare_dead(self, node):
        """Slurm would notice by itself, but that takes half a minute."""
        self.client("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=vanished")

    def node_state(self, node):
        return self.client("sinfo", "--noheader", "--nodes", node, "--partition", "batch", "--format", "%T").upper()

    def wait_for_node(self, node):
        self.wait_until(lambda: self.node_state(node) in ("IDLE", "MIXED", "ALLOCATED"), f"node {node} is back")

    # --- jobs -----------------------------------------------------------------------------------------------------
    def submit(self, script, *options, env=None):
        """Submits a script, a file or its text, and returns the job's number."""
        if not os.path.exists(script):
            script, text = self.folder / "job.sbatch", script
            script.write_text(text)
        return int(self.client("sbatch", "--parsable", *options, script, env=env))

    def job(self, job):
        """The fields of `scontrol show job`."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.client("scontrol", "--oneliner", "show", "job", job)))

    def wait(self, job, states=FINAL_STATES, timeout=TIMEOUT_S):
        """Waits until the job is in one of the states, and returns it as job() does."""
        def arrived():
            found = self.job(job)
            return found if found["JobState"] in states else None
        return self.wait_until(arrived, f"job {job} is in one of {states}", timeout, pause=0.5)

    def tasks(self, job):
        """{rank: pid} of the job's running tasks, each the first process of its step."""
        parent_of = keeper.parents()
        found = {}
        for pid in self._processes():
            env = environment_of(pid)
            is_first = "SLURM_STEP_ID" in env and "SLURM_STEP_ID" not in environment_of(parent_of.get(pid))
            if is_first and env["SLURM_JOB_ID"] == str(job):
                found[int(env["SLURM_PROCID"])] = pid
        return found

    def client(self, *argv, env=None):
        """The output of one of Slurm's programs."""
        if self.stopped:
            raise RuntimeError(f"the cluster was stopped before {argv[0]}")
        done = subprocess.run([str(word) for word in argv], env={**self.env, **(env or {})}, text=True, timeout=TIMEOUT_S,
                              capture_output=True)
        if done.returncode:
            raise RuntimeError(f"{argv}: {done.stderr}")
        return done.stdout.strip()

    # --- inside ---------------------------------------------------------------------------------------------------
    def _write_configuration(self):
        self.folder.chmod(0o755)  # munged requires that its socket is reachable
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        host = socket.gethostname().partition(".")[0]
        controller_port, *node_ports = free_ports(1 + len(NODES))
        nodes = [NODE.format(name=name, host=host, port=port, gpus=GPUS_PER_NODE)
                 for name, port in zip(NODES, node_ports)]
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(
            folder=self.folder, host=host, user=pwd.getpwuid(os.geteuid()).pw_name, controller_port=controller_port,
            first_job=random.randrange(1, 1_000_000), nodes="\n".join(nodes)))
        for gpu in range(GPUS_PER_NODE):
            (self.folder / f"gpu{gpu}").symlink_to("/dev/null")  # Slurm accepts no plain file as a device
        # Nothing here uses control groups. By default, slurmd looks for them and fails if none are mounted.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{GPUS_PER_NODE - 1}]\n")

    def _start_munged(self):
        files = [f"--{what}-file={self.folder}/munge.{what}" for what in ("key", "log", "pid", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        self.wait_until((self.folder / "munge.socket").exists, "munged's socket")

    def _start(self, *argv):
        program = shutil.which(argv[0], path=search_path())
        request = {"argv": [program, *map(str, argv[1:])], "env": self.env, "output": f"{self.folder}/{argv[0]}.out"}
        self.keeper.stdin.write(json.dumps(request) + "\n")
        self.keeper.stdin.flush()
        return int(self.keeper.stdout.readline())

    def _processes(self):
        return keeper.descendants(self.keeper.pid)


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
