/* A forked child whose first events come from several threads at once: the C library gives them
 * stacks of the parent's threads, so that starting them allocates nothing. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, CHILDREN = 40, BLOCKS = 50 };

static atomic_int waiting;
static void *volatile kept;

static void *work(void *unused) {
    /* All threads make their first allocation at the same time. */
    atomic_fetch_add(&waiting, 1);
    while (atomic_load(&waiting) < THREADS) {
    }
    for (int round = 0; round < BLOCKS; round++) {
        kept = malloc(32);
        free(kept);
    }
    return unused;
}

static void run_threads(void) {
    pthread_t threads[THREADS];
    atomic_store(&waiting, 0);
    for (int index = 0; index < THREADS; index++) pthread_create(&threads[index], NULL, work, NULL);
    for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
}

int main(void) {
    run_threads();
    for (int index = 0; index < CHILDREN; index++) {
        pid_t child = fork();
        if (child == 0) {
            run_threads();
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    return 0;
}
