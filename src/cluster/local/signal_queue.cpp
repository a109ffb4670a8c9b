#include "cluster/local/signal_queue.h"

#include <unistd.h>

#include <sys/signalfd.h>

namespace braid {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
// These are only messages: a shell ignores them so that they do not kill other programs, so the launcher still reads
// them.
constexpr int kMessages[] = {SIGUSR1, SIGUSR2};

// nohup and shells ignore signals for their jobs on purpose. A blocked signal would arrive here even if ignored.
bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

SignalQueue::SignalQueue() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGPIPE);  // even if ignored: our own writer sends it when the output has no reader
  for (int signal : kSignals)
    if (!is_ignored(signal)) sigaddset(&set, signal);
  for (int message : kMessages) sigaddset(&set, message);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  fd_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalQueue::~SignalQueue() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void SignalQueue::stop_this_process() const {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  raise(SIGTSTP);
  pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
}

int SignalQueue::next() const {
  signalfd_siginfo info;
  return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace braid
