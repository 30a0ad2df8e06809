/* The allocator is not a cancellation point: a thread with a pending deferred cancellation
 * allocates, resizes and frees for the first time, and ends only at pthread_testcancel. */
#include "own.h"
#include <pthread.h>
static _Atomic int reached;
static void *work(void *v) {
    pthread_cancel(pthread_self());
    for (int i = 0; i < 1000; i++) own_free(own_realloc(own_malloc(10 + i), 20 + i));
    reached++;
    pthread_testcancel();
    reached += 100;
    return v;
}
int main(void) {
    for (int i = 0; i < 20; i++) {
        pthread_t id;
        must(!pthread_create(&id, 0, work, 0), "a thread");
        pthread_join(id, 0);
    }
    say("%d\n", reached);
    return 0;
}
