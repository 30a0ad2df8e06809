/* Allocates and frees on THREADS threads (1) until it is killed. The program counts every
 * allocation after the call has returned. */
#include "own.h"
#include <pthread.h>
static void *work(void *v) {
    uint64_t s = 31 + (uintptr_t)v;
    void *live[100] = { 0 };
    for (;;) {
        unsigned long k = rng(&s) % 100;
        own_free(live[k]);
        live[k] = own_malloc(16 + rng(&s) % 400);
        if (k % 8 == 0) live[k] = own_realloc(live[k], 16 + rng(&s) % 800);
    }
    return v;
}
int main(int argc, char **argv) {
    unsigned long threads = number(argc, argv, 1, 1);
    pthread_t id;
    for (unsigned long i = 1; i < threads; i++) must(!pthread_create(&id, 0, work, (void *)i), "a thread");
    work(0);
}
