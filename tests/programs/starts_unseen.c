/* Starts a program with an environment of its own, in a way that no library sees, and waits for it:
 * raw     by direct system calls
 * go      as Go's exec.Command does: also the end is a direct system call
 * system  by system() after unsetenv
 * popen   by popen() after unsetenv
 * forked  by system() after unsetenv, in a forked child
 * ignored by system() after unsetenv, while SIGCHLD is ignored
 * left    by popen() after unsetenv, and nobody waits for it
 * itself  in its own place, by a direct system call
 * orphan  by a direct execve in the forked child of a forked child that ends at once
 * beside  five times as raw, after three times by posix_spawn with the environment of this program
 * The second argument is a command of the shell. */
#include "own.h"
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include "processor.h"

static void execute(const char *command) {
    const char *arguments[] = { "/bin/sh", "-c", command, 0 }, *environment[] = { "PATH=/usr/bin:/bin", 0 };
    raw_call(SYS_execve, (long)arguments[0], (long)arguments, (long)environment);
    raw_call(SYS_exit_group, 126, 0, 0);
}

static void wait_for(long child) {
    must(child > 0 && waitpid((pid_t)child, 0, 0) == child, "a child");
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "raw";
    const char *command = argc > 2 ? argv[2] : "true";
    free(malloc(1));
    if (!strcmp(how, "raw") || !strcmp(how, "go")) {
        const char *arguments[] = { "/bin/sh", "-c", command, 0 }, *environment[] = { "PATH=/usr/bin:/bin", 0 };
        long child = raw_call(SYS_clone, SIGCHLD, 0, 0);
        if (!child) {
            raw_call(SYS_execve, (long)arguments[0], (long)arguments, (long)environment);
            raw_call(SYS_exit_group, 127, 0, 0);
        }
        must(child > 0 && waitpid((pid_t)child, 0, 0) == child, "a child");
        if (!strcmp(how, "go")) raw_call(SYS_exit_group, 0, 0, 0);
        return 0;
    }
    if (!strcmp(how, "itself")) {
        const char *arguments[] = { "/bin/sh", "-c", command, 0 }, *environment[] = { "PATH=/usr/bin:/bin", 0 };
        raw_call(SYS_execve, (long)arguments[0], (long)arguments, (long)environment);
        return 127;
    }
    if (!strcmp(how, "orphan")) {
        int ends[2];
        char byte;
        must(!pipe(ends), "a pipe");
        pid_t child = fork();
        if (!child) {
            if (!fork()) execute(command);
            raw_call(SYS_exit_group, 0, 0, 0);
        }
        wait_for(child);
        close(ends[1]);
        must(!read(ends[0], &byte, 1), "its end");
        return 0;
    }
    if (!strcmp(how, "beside")) {
        extern char **environ;
        char *arguments[] = { "/bin/sh", "-c", (char *)command, 0 };
        for (int start = 0; start < 8; start++) {
            pid_t known;
            if (start < 3) must(!posix_spawn(&known, "/bin/sh", 0, 0, arguments, environ), "a known child");
            long child = start < 3 ? known : raw_call(SYS_clone, SIGCHLD, 0, 0);
            if (!child) execute(command);
            wait_for(child);
        }
        return 0;
    }
    unsetenv("LD_PRELOAD");
    if (!strcmp(how, "forked")) {
        pid_t child = fork();
        if (!child) _exit(system(command));
        int status;
        must(child > 0 && waitpid(child, &status, 0) == child && !status, "a child");
        return 0;
    }
    if (!strcmp(how, "ignored")) signal(SIGCHLD, SIG_IGN);
    if (!strcmp(how, "system") || !strcmp(how, "ignored")) {
        system(command);
        return 0;
    }
    FILE *pipe = popen(command, "r");
    char line[9];
    must(pipe && !fgets(line, sizeof line, pipe), "popen");
    if (!strcmp(how, "popen")) must(!pclose(pipe), "pclose");
    return 0;
}
