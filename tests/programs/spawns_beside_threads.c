/* One thread starts a program COUNT times (100) by posix_spawn. Meanwhile another thread checks
 * that the lowest free descriptor is always the same, and closes descriptors that it has not
 * opened. With the third argument "forked" a forked child does so, and its parent waits. */
#include "own.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
extern char **environ;
static volatile int done;
static void *looks(void *wrong) {
    while (!done) {
        int lowest = dup(0);
        if (lowest != 3) ++*(volatile long *)wrong;
        for (int i = 4; i < 8; i++) if (!close(i)) ++*(volatile long *)wrong;
        if (lowest >= 0) close(lowest);
    }
    return 0;
}
int main(int argc, char **argv) {
    unsigned long count = number(argc, argv, 1, 100);
    char *program = argc > 2 ? argv[2] : "/bin/true", *words[] = { program, 0 };
    long wrong = 0;
    pthread_t other;
    for (int i = 3; i < 10; i++) close(i);
    if (argc > 3 && !strcmp(argv[3], "forked")) {
        int status;
        free(malloc(100));
        pid_t child = fork();
        must(child >= 0, "a child");
        if (child) {
            must(waitpid(child, &status, 0) == child, "it ends");
            return WEXITSTATUS(status);
        }
    }
    must(!pthread_create(&other, 0, looks, &wrong), "a thread");
    for (unsigned long i = 0; i < count; i++) {
        pid_t pid;
        int status;
        must(!posix_spawn(&pid, program, 0, 0, words, environ), "a program starts");
        must(waitpid(pid, &status, 0) == pid && status == 0, "it ends well");
    }
    done = 1;
    pthread_join(other, 0);
    say("%s\n", wrong ? "a descriptor of another's" : "only its own descriptors");
    return 0;
}
