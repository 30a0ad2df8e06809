// Starts programs, all at once: this program again, without arguments. Each of them forks children that allocate.
// all_at_once PROGRAMS CHILDREN
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int wait_for_all(void) {
    int failed = 0;
    for (int status; wait(&status) > 0;) failed += status != 0;
    return failed;
}

static int forks(int children) {
    free(malloc(10));
    for (int i = 0; i < children; i++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (child == 0) {
            for (int j = 0; j < 10; j++) free(malloc(100));
            _exit(0);
        }
    }
    return wait_for_all();
}

int main(int count, char **arguments) {
    if (count == 2) return forks(atoi(arguments[1]));
    if (count != 3) return 2;
    for (int i = atoi(arguments[1]); i > 0; i--) {
        char *program[] = {arguments[0], arguments[2], NULL};
        pid_t pid;
        if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, program, environ) != 0) return 1;
    }
    return wait_for_all() != 0;
}
