/* THREADS threads (500) that allocate are canceled asynchronously at any instruction. Then
 * 10,000 pairs are allocated and freed without interruption. Linked with signal_safe_allocator. */
#include "own.h"
#include <pthread.h>
#include <time.h>
static void *work(void *v) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    uint64_t s = (uintptr_t)v * 2 + 1;
    for (;;) {
        void *p = malloc(16 + rng(&s) % 100);
        p = realloc(p, 300);
        free(p);
    }
    return 0;
}
int main(int argc, char **argv) {
    unsigned long threads = number(argc, argv, 1, 500);
    for (unsigned long i = 0; i < threads; i++) {
        pthread_t id;
        must(!pthread_create(&id, 0, work, (void *)i), "a thread");
        struct timespec nap = { 0, 1000 * (i % 997) };
        nanosleep(&nap, 0);
        pthread_cancel(id);
        void *result;
        pthread_join(id, &result);
        must(result == PTHREAD_CANCELED, "cancelled");
    }
    for (int i = 0; i < 10000; i++) free(malloc(883));
    say("%lu\n", threads);
    return 0;
}
