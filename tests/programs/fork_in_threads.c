/* Seven threads allocate without pause while the main thread forks FORKS times (100). Each child
 * allocates and frees 100 blocks and ends. */
#include "own.h"
#include <pthread.h>
#include <sys/wait.h>
static _Atomic int stop;
static void *work(void *v) {
    uint64_t s = (uintptr_t)v + 12345;
    while (!stop) { void *p = own_malloc(16 + rng(&s) % 500); p = own_realloc(p, 16 + rng(&s) % 500); own_free(p); }
    return v;
}
int main(int argc, char **argv) {
    unsigned long forks = number(argc, argv, 1, 100);
    pthread_t id[7];
    for (long i = 0; i < 7; i++) must(!pthread_create(&id[i], 0, work, (void *)i), "a thread");
    for (unsigned long i = 0; i < forks; i++) {
        pid_t pid = fork();
        if (!pid) {
            for (int k = 0; k < 100; k++) free(malloc(701));
            _exit(9);
        }
        int status;
        must(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 9, "a child");
    }
    stop = 1;
    for (int i = 0; i < 7; i++) pthread_join(id[i], 0);
    say("%lu children\n", forks);
    return 0;
}
