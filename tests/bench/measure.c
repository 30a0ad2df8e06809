/* measure FILE PROG ARGS…: runs PROG and writes to FILE what it and the children that it waited for used: wall and CPU seconds, the largest
 * resident set in KiB, and the moment of its end. It does so from outside, so that a recorder in PROG is part of what is measured. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static double seconds(struct timeval t) { return t.tv_sec + t.tv_usec * 1e-6; }

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    double start = now();
    pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    int status;
    struct rusage used;
    if (wait4(pid, &status, 0, &used) != pid) return 2;
    double end = now();
    FILE *out = fopen(argv[1], "w");
    if (!out) return 2;
    fprintf(out, "{\"wall\": %.6f, \"user\": %.6f, \"system\": %.6f, \"rss_kib\": %ld, \"end\": %.6f, \"pid\": %d}\n", end - start,
        seconds(used.ru_utime), seconds(used.ru_stime), used.ru_maxrss, end, (int)pid);
    fclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
