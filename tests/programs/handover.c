/* Two threads pass a block on by plain store and load, without a locked instruction, HANDOVERS
 * times (1,000,000). A clock that is read too early would reverse the order of the events. */
#include "own.h"
#include <pthread.h>
static _Atomic(void *) place;
static unsigned long handovers;
static void *frees(void *none) {
    for (unsigned long i = 0; i < handovers; i++) {
        void *p;
        while (!(p = atomic_load_explicit(&place, memory_order_acquire))) __builtin_ia32_pause();
        atomic_store_explicit(&place, 0, memory_order_release);
        own_free(p);
    }
    return none;
}
static void *takes(void *none) {
    for (unsigned long i = 0; i < handovers; i++) {
        void *p = own_malloc(24 + i % 3);
        while (atomic_load_explicit(&place, memory_order_acquire)) __builtin_ia32_pause();
        atomic_store_explicit(&place, p, memory_order_release);
    }
    return none;
}
int main(int argc, char **argv) {
    handovers = number(argc, argv, 1, 1000000);
    pthread_t id[2];
    must(!pthread_create(&id[0], 0, frees, 0) && !pthread_create(&id[1], 0, takes, 0), "two threads");
    pthread_join(id[0], 0);
    pthread_join(id[1], 0);
    say("%lu\n", handovers);
    return 0;
}
