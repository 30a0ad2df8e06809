/* Tries to start a program that does not exist, by `execv` or by `syscall`, while a handler of a timer
 * allocates. Nothing else allocates then. The second argument is the number of signals. */
#include "own.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>

extern char **environ;
static volatile sig_atomic_t signals;

static void handle(int signal) {
    (void)signal;
    signals++;
    void *volatile block = malloc(100);
    free(block);
}
int main(int argc, char **argv) {
    must(argc == 3, "how and a number");
    free(malloc(50));
    struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
    struct itimerval often = { { 0, 70 }, { 0, 70 } }, never = { { 0, 0 }, { 0, 0 } };
    must(!sigaction(SIGALRM, &action, 0), "a handler");
    must(!setitimer(ITIMER_REAL, &often, 0), "a timer");
    char *arguments[] = { "program", 0 };
    int calls = !strcmp(argv[1], "syscall");
    while (signals < atoi(argv[2])) {
        if (calls) syscall(SYS_execve, "/nonexistent/program", arguments, environ);
        else execv("/nonexistent/program", arguments);
    }
    must(!setitimer(ITIMER_REAL, &never, 0), "no timer");
    say("not started\n");
}
