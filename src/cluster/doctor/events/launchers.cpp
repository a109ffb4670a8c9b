#include "cluster/doctor/events/launchers.h"

#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

struct Word {
  bool Launchers::*launcher;
  const char* word;
};

constexpr Word kWords[] = {
    {&Launchers::slurm, "srun: "},
    {&Launchers::slurm, "slurmstepd"},
    {&Launchers::slurm, "slurm_script"},
    {&Launchers::slurm, "sbatch: "},
    {&Launchers::slurm, "salloc: "},
    {&Launchers::slurm, "SLURM_"},
    {&Launchers::slurm, "== job "},
    {&Launchers::kubernetes, "OOMKilled"},
    {&Launchers::kubernetes, "kubectl"},
    {&Launchers::kubernetes, "kubelet"},
    {&Launchers::kubernetes, "[pod/"},
    {&Launchers::kubernetes, "PyTorchJob"},
    {&Launchers::kubernetes, "low on resource"},
    {&Launchers::kubernetes, "CrashLoopBackOff"},
    {&Launchers::lsf, "LSF"},
    {&Launchers::lsf, "TERM_RUNLIMIT"},
    {&Launchers::ray, "raylet"},
    {&Launchers::ray, "ray.exceptions"},
    {&Launchers::ray, "ray::"},
    {&Launchers::mpi, "mpirun"},
    {&Launchers::mpi, "prterun"},
    {&Launchers::mpi, "mpiexec"},
    {&Launchers::mpi, "BAD TERMINATION"},
    {&Launchers::torchrun, "torchrun"},
    {&Launchers::torchrun, "torch.distributed.elastic"},
    {&Launchers::torchrun, "torch/distributed/"},
};

}  // namespace

void Launchers::note(std::string_view line) {
  line = line.substr(0, 400);
  for (const Word& entry : kWords)
    if (!(this->*entry.launcher) && has_word(line, entry.word)) this->*entry.launcher = true;
}

}  // namespace braid
