// fork, and limits on what the copy may use.
#include "io/trial.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace qattn::io {
namespace {

/// In the copy: no core file, no message of a sanitizer or of the C library, signals as the system delivers them.
[[noreturn]] void run_copy(const std::function<void()>& work, unsigned cpu_seconds) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGINT, SIGTERM, SIGXCPU}) signal(number, SIG_DFL);
  const rlimit no_core{0, 0}, time{cpu_seconds, cpu_seconds + 1};
  setrlimit(RLIMIT_CORE, &no_core);
  setrlimit(RLIMIT_CPU, &time);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(nowhere, STDOUT_FILENO);
  dup2(nowhere, STDERR_FILENO);
  try {
    work();
  } catch (...) {
  }
  _exit(0);
}

/// Ctrl-C reaches the copy too; that is no crash.
TrialEnd end_of(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status) == 0 ? TrialEnd::finished : TrialEnd::crashed;
  const int number = WTERMSIG(status);
  if (number == SIGXCPU) return TrialEnd::hung;
  return number == SIGINT || number == SIGTERM || number == SIGHUP ? TrialEnd::finished : TrialEnd::crashed;
}

}  // namespace

TrialEnd try_apart(const std::function<void()>& work, unsigned cpu_seconds) {
  const pid_t copy = fork();
  if (copy < 0) return TrialEnd::finished;
  if (copy == 0) run_copy(work, cpu_seconds);
  int status = 0;
  while (waitpid(copy, &status, 0) < 0) {
    if (errno != EINTR) return TrialEnd::finished;  // a caller that ignores SIGCHLD never learns how it ended
  }
  return end_of(status);
}

}  // namespace qattn::io
