/* Starts a program with an environment of its own, in a way that no library sees, and waits for it:
 * raw     by direct system calls
 * go      as Go's exec.Command does: also the end is a direct system call
 * system  by system() after unsetenv
 * popen   by popen() after unsetenv
 * forked  by system() after unsetenv, in a forked child
 * ignored by system() after unsetenv, while SIGCHLD is ignored
 * left    by popen() after unsetenv, and nobody waits for it
 * itself  in its own place, by a direct system call
 * The second argument is a command of the shell. */
#include "own.h"
#include <signal.h>
#include <sys/wait.h>
#include "processor.h"

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
