/* Starts THREADS threads (2,000), LIVE at a time (50). Each allocates and frees ten blocks. */
#include "own.h"
#include <pthread.h>
static void *work(void *v) {
    void *p[10];
    for (int i = 0; i < 10; i++) p[i] = own_malloc(41 + i);
    for (int i = 0; i < 10; i++) own_free(p[i]);
    return v;
}
int main(int argc, char **argv) {
    unsigned long all = number(argc, argv, 1, 2000), live = number(argc, argv, 2, 50);
    pthread_t id[live];
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 65536);
    for (unsigned long i = 0; i < all; i++) {
        if (i >= live) pthread_join(id[i % live], 0);
        must(!pthread_create(&id[i % live], &attr, work, 0), "a thread");
    }
    for (unsigned long i = 0; i < (all < live ? all : live); i++) pthread_join(id[i], 0);
    say("%lu threads\n", all);
    return 0;
}
