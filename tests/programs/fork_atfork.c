/* A handler of pthread_atfork allocates in each of FORKS children (3), which then allocate in
 * the program itself. */
#include "own.h"
#include <pthread.h>
#include <sys/wait.h>

static void in_child(void) {
    for (int i = 0; i < 10; i++) free(malloc(503));
}

int main(int argc, char **argv) {
    unsigned long forks = number(argc, argv, 1, 3);
    must(!pthread_atfork(0, 0, in_child), "a handler");
    for (unsigned long i = 0; i < forks; i++) {
        free(malloc(409));
        pid_t pid = fork();
        if (!pid) {
            for (int k = 0; k < 1000; k++) free(malloc(607));
            _exit(11);
        }
        int status;
        must(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 11, "a child");
    }
    say("%lu children\n", forks);
    return 0;
}
