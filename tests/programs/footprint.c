/* Prints what a program can observe of a library in its process: descriptors, threads, signal
 * handlers and masks, limits, alternate stack, alarms, order of exit handlers, environment. The
 * text must be the same with and without a recorder, except LD_PRELOAD and HEAPTAPE_ variables. */
#include "own.h"
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
extern char **environ;
static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
int main(void) {
    free(malloc(100));
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(folder));) {
        int n = atoi(e->d_name);
        char path[64], target[256] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", n);
        if (e->d_name[0] == '.' || n == dirfd(folder)) continue;
        if (readlink(path, target, sizeof target - 1) < 0) continue;
        if (n > 2) say("descriptor %d %s\n", n, target); else say("descriptor %d\n", n);
    }
    say("next descriptor %d\n", dup(0));
    closedir(folder);
    FILE *status = fopen("/proc/self/status", "r");
    for (char line[256]; fgets(line, sizeof line, status);)
        if (!strncmp(line, "Threads:", 8) || !strncmp(line, "Sig", 3) || !strncmp(line, "Shd", 3) || !strncmp(line, "Seccomp", 7) ||
            !strncmp(line, "NoNewPrivs", 10) || !strncmp(line, "Umask", 5) || !strncmp(line, "CoreDumping", 11))
        {
            /* libc uses signals 32 and 33. The parent may have left them in any state. */
            char *colon = strchr(line, ':');
            if (!strncmp(line, "SigQ", 4)) continue;
            if (!strncmp(line, "Sig", 3)) say("%.7s %016lx\n", line, strtoul(colon + 1, 0, 16) & ~0x180000000ul);
            else say("%s", line);
        }
    fclose(status);
    for (int i = 1; i < NSIG; i++) {
        if (i == 32 || i == 33) continue;
        struct sigaction action;
        if (!sigaction(i, 0, &action) && action.sa_handler != SIG_DFL) say("signal %d %s\n", i, action.sa_handler == SIG_IGN ? "ignored" : "handled");
    }
    stack_t stack;
    sigaltstack(0, &stack);
    say("alternate stack flags %d\n", stack.ss_flags);
    for (int i = 0; i < RLIMIT_NLIMITS; i++) {
        struct rlimit limit;
        if (!getrlimit(i, &limit)) say("limit %d %lu %lu\n", i, limit.rlim_cur, limit.rlim_max);
    }
    for (int i = 0; i < 3; i++) {
        struct itimerval timer;
        getitimer(i, &timer);
        say("timer %d %ld\n", i, timer.it_value.tv_sec);
    }
    char *texts[1000];
    int n = 0;
    for (char **e = environ; *e && n < 1000; e++)
        if (strncmp(*e, "LD_PRELOAD=", 11) && strncmp(*e, "HEAPTAPE_", 9) && strncmp(*e, "_=", 2)) texts[n++] = *e;
    qsort(texts, n, sizeof *texts, by_text);
    for (int i = 0; i < n; i++) say("%s\n", texts[i]);
    return 0;
}
