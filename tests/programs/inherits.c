/* What a process inherits from the one that started it, apart from descriptors and mappings.
 *
 * inherits set PROGRAM…   changes all of it to what no test has by itself, and executes the program
 * inherits show           prints it
 * inherits show twice     prints it at each line of the standard input */
#include "own.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

static void put_file(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, strlen(text)) < 0) fprintf(stderr, "%s stays\n", path);
    close(file);
}
static void change(void) {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigaddset(&blocked, SIGRTMIN + 3);
    must(!sigprocmask(SIG_BLOCK, &blocked, 0) && signal(SIGTTOU, SIG_IGN) != SIG_ERR && signal(SIGUSR1, SIG_IGN) != SIG_ERR, "signals");
    umask(0137);
    must(nice(3) == 3 || !errno, "nice");
    static const struct { int kind; rlim_t soft, hard; } limits[] = {
        { RLIMIT_CORE, 4096, 8192 }, { RLIMIT_NOFILE, 300, 400 }, { RLIMIT_STACK, 4 << 20, 16 << 20 }, { RLIMIT_FSIZE, 1ul << 40, 1ul << 41 },
        { RLIMIT_DATA, 1ul << 40, 1ul << 41 }, { RLIMIT_AS, 1ul << 45, 1ul << 46 }, { RLIMIT_CPU, 5000, 6000 }, { RLIMIT_MEMLOCK, 1 << 16, 1 << 20 },
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct rlimit limit = { limits[i].soft, limits[i].hard };
        must(!setrlimit(limits[i].kind, &limit), "a limit");
    }
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(0, &cpus);
    must(!sched_setaffinity(0, sizeof cpus, &cpus), "affinity");
    struct sched_param none = { 0 };
    must(!sched_setscheduler(0, SCHED_BATCH, &none), "policy");
    must(!syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6), "ioprio");
    must(personality(ADDR_NO_RANDOMIZE) != -1, "personality");
    must(!prctl(PR_SET_TIMERSLACK, 123456), "timer slack");
    must(!prctl(PR_SET_CHILD_SUBREAPER, 1) && !prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), "prctl");
    if (!geteuid()) must(!prctl(PR_SET_SECUREBITS, 1 << 4) && !prctl(PR_CAPBSET_DROP, 25 /* CAP_SYS_TIME */), "rights");
    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new rights");
    syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, "heaptape-test");
    put_file("/proc/self/oom_score_adj", "321");
    put_file("/proc/self/coredump_filter", "0x11");
    struct itimerval far = { { 0, 0 }, { 50000, 0 } };
    must(!setitimer(ITIMER_REAL, &far, 0), "a timer");
    char number[16];
    snprintf(number, sizeof number, "%d", getpgrp());
    setenv("GROUP", number, 1);
    snprintf(number, sizeof number, "%d", getsid(0));
    setenv("SESSION", number, 1);
    /* An exec keeps pending signals. */
    kill(getpid(), SIGUSR2);
    kill(getpid(), SIGRTMIN + 3);
}
static void show_file(const char *path) {
    char text[4096];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[size < 0 ? 0 : size] = 0;
    printf("%s: %s\n", path, text);
}
static void show_status(void) {
    static const char *const wanted[] = { "Name:", "Umask:", "Uid:", "Gid:", "Groups:", "Threads:", "Sig", "ShdPnd:", "Cap", "NoNewPrivs:",
                                          "Seccomp", "Speculation", "Cpus_allowed:", "Mems_allowed:", "THP_enabled:", "CoreDumping:", "NS" };
    char line[512];
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            /* NStgid and so on are numbers of processes. */
            if (!strncmp(line, wanted[i], strlen(wanted[i])) && strncmp(line, "NS", 2) && strncmp(line, "SigQ", 4)) fputs(line, stdout);
    if (status) fclose(status);
}
static void show(void) {
    for (int kind = 0; kind < 16; kind++) {
        struct rlimit limit = { 0, 0 };
        getrlimit(kind, &limit);
        printf("limit %d: %lx %lx\n", kind, (long)limit.rlim_cur, (long)limit.rlim_max);
    }
    show_status();
    printf("nice %d policy %d ioprio %ld personality %x\n", getpriority(PRIO_PROCESS, 0), sched_getscheduler(0),
           syscall(SYS_ioprio_get, 1, 0), personality(0xffffffff));
    static const int questions[] = { PR_GET_DUMPABLE, PR_GET_KEEPCAPS, PR_GET_SECUREBITS, PR_GET_TIMERSLACK, PR_GET_NO_NEW_PRIVS, PR_GET_THP_DISABLE,
                                     PR_GET_IO_FLUSHER, PR_MCE_KILL_GET, PR_GET_SPECULATION_CTRL };
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) printf("prctl %d: %d\n", questions[i], prctl(questions[i], 0, 0, 0, 0));
    static const int asked[] = { PR_GET_TSC, PR_GET_PDEATHSIG, PR_GET_CHILD_SUBREAPER };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        int answer = -1;
        prctl(asked[i], &answer, 0, 0, 0);
        printf("prctl %d: %d\n", asked[i], answer);
    }
    for (int kind = 0; kind < 3; kind++) {
        struct itimerval timer = { 0 };
        getitimer(kind, &timer);
        printf("timer %d: %s\n", kind, timer.it_value.tv_sec || timer.it_value.tv_usec ? "armed" : "none");
    }
    int terminal = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    printf("terminal %d", terminal >= 0 ? tcgetpgrp(terminal) == getpgrp() : -1);
    if (terminal >= 0) close(terminal);
    const char *group = getenv("GROUP"), *session = getenv("SESSION");
    printf(" group %d session %d\n", group ? getpgrp() == atoi(group) : -1, session ? getsid(0) == atoi(session) : -1);
    char keyring[256] = "";
    long ring = syscall(SYS_keyctl, 0 /* KEYCTL_GET_KEYRING_ID */, -3 /* session */, 0);
    if (syscall(SYS_keyctl, 6 /* KEYCTL_DESCRIBE */, ring, keyring, sizeof keyring - 1) < 0) keyring[0] = 0;
    printf("keyring %s\n", keyring);
    static const char *const files[] = { "/proc/self/oom_score_adj", "/proc/self/coredump_filter", "/proc/self/cgroup", "/proc/self/timerslack_ns",
                                         "/proc/self/loginuid", "/proc/self/sessionid", "/proc/self/autogroup", "/proc/self/attr/current",
                                         "/proc/self/uid_map", "/proc/self/setgroups" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) show_file(files[i]);
    static const char *const spaces[] = { "mnt", "net", "pid", "pid_for_children", "ipc", "uts", "user", "cgroup", "time" };
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        char path[64], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/ns/%s", spaces[i]);
        if (readlink(path, target, sizeof target - 1) < 0) target[0] = 0;
        printf("%s %s\n", spaces[i], target);
    }
    fflush(stdout);
}
int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "set")) {
        change();
        execvp(argv[2], argv + 2);
        return 4;
    }
    free(malloc(10));
    show();
    char line[16];
    while (argc > 2 && fgets(line, sizeof line, stdin)) show();
    return 0;
}
