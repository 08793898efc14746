#include "init.h"

#include "say.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool init_is_wanted(bool *is_valid)
{
    const char *text = getenv("CMK_INIT");
    bool is_set = text && strcmp(text, "1") == 0;
    *is_valid = !text || is_set || !*text || strcmp(text, "0") == 0;
    if (!*is_valid)
        say("CMK_INIT is %s: write 1, so that cmk stays as process 1 and the command runs below it, or 0", text);
    return is_set && getpid() == 1;
}

/* Faults of this program must end it. */
static sigset_t all_but_faults(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t signals;
    sigfillset(&signals);
    for (size_t at = 0; at < sizeof faults / sizeof *faults; at++)
        sigdelset(&signals, faults[at]);
    return signals;
}

/* Reap every child; exit with the command's exit code if it is among them. */
static void collect(pid_t command)
{
    int status;
    for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;)
        if (ended == command)
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* Signals are blocked and fetched by this loop, so that none is lost between two iterations. */
static _Noreturn void watch_over(pid_t command, const sigset_t *signals)
{
    for (;;) {
        int number = sigwaitinfo(signals, NULL);
        if (number == SIGCHLD)
            collect(command);
        else if (number > 0 && number != SIGTTIN && number != SIGTTOU) /* these two concern this process's terminal */
            kill(command, number);
    }
}

/* A terminal sends signals to a process group: in the same group the command would get them twice. */
static void lead_the_terminal(void)
{
    if (setpgid(0, 0) == 0 && isatty(STDIN_FILENO))
        tcsetpgrp(STDIN_FILENO, getpid());
}

/* Reset the affinity that the child inherits from this process. */
static void use_all_cpus(void)
{
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
}

bool init_start(void)
{
    sigset_t signals = all_but_faults(), before;
    sigprocmask(SIG_BLOCK, &signals, &before);
    signal(SIGCHLD, SIG_DFL); /* if it is ignored, the kernel reaps children and their exit codes are lost */
    pid_t child = fork();
    if (child > 0)
        watch_over(child, &signals);
    if (child < 0) {
        say("CMK_INIT: cannot start a child: %s", strerror(errno));
        return false;
    }
    lead_the_terminal();
    use_all_cpus();
    sigprocmask(SIG_SETMASK, &before, NULL);
    return true;
}
