/* What a program has of signals when it starts, and which ones reach it:
 * state            prints what it was started with
 * log              prints each signal with code and value until SIGTERM; exit status 5
 * group SIGNAL N   sends SIGNAL to its own group N times; prints how often its handler ran
 * parent SIGNAL    sends SIGNAL to its parent
 * stop SIGNAL      stops itself; a child continues it; exit status 6 */
#include "own.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>

static volatile sig_atomic_t count;
static void counts(int number) { (void)number; count++; }
static void logs(int number, siginfo_t *from, void *context) {
    (void)context;
    char line[80];
    /* A forwarded signal has another sender and the same value. */
    int value = from->si_code == SI_QUEUE ? from->si_value.sival_int : 0;
    int length = snprintf(line, sizeof line, "%d %d %d\n", number, from->si_code == SI_QUEUE, value);
    must(write(1, line, (size_t)length) == length, "a line");
}

static void state(void) {
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    must(file != 0, "status");
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "SigBlk", 6) || !strncmp(line, "SigIgn", 6) || !strncmp(line, "ShdPnd", 6) || !strncmp(line, "SigCgt", 6)) fputs(line, stderr);
    fclose(file);
    int kinds[] = { ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF };
    for (int i = 0; i < 3; i++) {
        struct itimerval timer;
        getitimer(kinds[i], &timer);
        fprintf(stderr, "timer %d: %s, every %ld s\n", i, timer.it_value.tv_sec ? "runs" : "none", (long)timer.it_interval.tv_sec);
    }
    for (int i = 0; i < 10; i++) fprintf(stderr, "%d", fcntl(i, F_GETFD) >= 0);
    int death = 0, reaper = 0;
    prctl(PR_GET_PDEATHSIG, &death);
    prctl(PR_GET_CHILD_SUBREAPER, &reaper);
    fprintf(stderr, "\ndeath %d reaper %d\n", death, reaper);
}

int main(int argc, char **argv) {
    must(argc > 1, "what");
    free(malloc(100));
    if (!strcmp(argv[1], "state")) { state(); return 0; }
    int number = argc > 2 ? atoi(argv[2]) : 0;
    if (!strcmp(argv[1], "parent")) return kill(getppid(), number) ? 1 : 0;
    if (!strcmp(argv[1], "group")) {
        signal(number, counts);
        for (int i = 0; i < atoi(argv[3]); i++) { kill(0, number); usleep(2000); }
        usleep(200000);
        printf("%d\n", (int)count);
        return 0;
    }
    if (!strcmp(argv[1], "stop")) {
        pid_t own = getpid(), child = fork();
        if (child == 0) { usleep(400000); kill(own, SIGCONT); _exit(0); }
        raise(number);
        waitpid(child, 0, 0);
        return 6;
    }
    sigset_t all;
    sigfillset(&all);
    struct sigaction action = { .sa_sigaction = logs, .sa_flags = SA_SIGINFO, .sa_mask = all };
    for (int i = 1; i <= SIGRTMAX; i++)
        if (i != SIGCHLD && i != SIGTERM) sigaction(i, &action, 0);
    sigprocmask(SIG_BLOCK, &all, 0);
    sigset_t none;
    sigemptyset(&none);
    struct sigaction ends = { .sa_handler = counts, .sa_mask = all };
    sigaction(SIGTERM, &ends, 0);
    must(write(1, "ready\n", 6) == 6, "a line");
    while (!count) sigsuspend(&none);
    return 5;
}
