/* THREADS threads (1,000) that are alive at the same time. Each allocates a block before all
 * have started and another after that. */
#include "own.h"
#include <pthread.h>
static pthread_barrier_t meeting;
static void *work(void *v) {
    void *p = own_malloc(911);
    pthread_barrier_wait(&meeting);
    void *q = own_malloc(919);
    own_free(p);
    own_free(q);
    return v;
}
int main(int argc, char **argv) {
    unsigned long threads = number(argc, argv, 1, 1000);
    pthread_t *id = mmap(0, threads * sizeof *id, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 65536);
    pthread_barrier_init(&meeting, 0, threads);
    for (unsigned long i = 0; i < threads; i++) must(!pthread_create(&id[i], &attr, work, 0), "a thread");
    for (unsigned long i = 0; i < threads; i++) pthread_join(id[i], 0);
    say("%lu threads\n", threads);
    return 0;
}
