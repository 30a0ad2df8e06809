/* Threads with the smallest stack that there is, 16,384 bytes, which allocate and resize. */
#include "own.h"
#include <pthread.h>
static void *work(void *v) {
    for (int i = 0; i < 500; i++) {
        void *p = own_malloc(100 + i);
        p = own_realloc(p, 900 + i);
        own_free(p);
    }
    return v;
}
int main(void) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    must(!pthread_attr_setstacksize(&attr, 16384), "the smallest stack");
    for (int i = 0; i < 20; i++) {
        pthread_t id;
        must(!pthread_create(&id, &attr, work, 0), "pthread_create");
        pthread_join(id, 0);
    }
    say("done\n");
    return 0;
}
