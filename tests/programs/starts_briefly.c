/* Starts a program three times, one after the other, each of which runs for 0.3 s. After the first
 * argument:
 * kept     by direct system calls, with the environment of this program
 * clone    the same with an environment of its own, after one with that of this program
 * vfork    by vfork and a direct execve
 * fork     by fork and a direct execve
 * static   as clone, and the program is the second argument
 * emptied  by vfork and execve, with an environment of its own */
#include "own.h"
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include "processor.h"

static void execute(const char *path, char **environment) {
    const char *arguments[] = { path, "child", 0 };
    raw_call(SYS_execve, (long)path, (long)arguments, (long)environment);
    raw_call(SYS_exit_group, 127, 0, 0);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "clone", *path = argc > 2 ? argv[2] : "/proc/self/exe";
    char *own[] = { "PATH=/usr/bin:/bin", 0 }, own_path[4096];
    extern char **environ;
    char *volatile kept = malloc(100);
    must(kept != 0, "memory");
    if (!strcmp(how, "child")) {
        struct timespec time = { 0, 300 * 1000 * 1000 };
        nanosleep(&time, 0);
        return 0;
    }
    if (argc <= 2) {
        ssize_t length = readlink(path, own_path, sizeof own_path - 1);
        must(length > 0, "its path");
        own_path[length] = 0;
        path = own_path;
    }
    int is_kept = !strcmp(how, "kept"), is_raw = is_kept || !strcmp(how, "clone") || !strcmp(how, "static");
    for (int start = is_raw && !is_kept ? -1 : 0; start < 3; start++) {
        char **environment = is_kept || start < 0 ? environ : own;
        long child;
        if (is_raw) {
            child = raw_call(SYS_clone, SIGCHLD, 0, 0);
            if (!child) execute(start < 0 ? "/proc/self/exe" : path, environment);
        } else if (!strcmp(how, "fork")) {
            child = fork();
            if (!child) execute(path, environment);
        } else {
            const char *arguments[] = { path, "child", 0 };
            child = vfork();
            if (!child && !strcmp(how, "vfork")) execute(path, environment);
            if (!child) {
                execve(path, (char **)arguments, environment);
                _exit(127);
            }
        }
        int status;
        must(child > 0 && waitpid((pid_t)child, &status, 0) == child && !status, "a child");
    }
    return 0;
}
