/* The main thread ends, and another one runs for a minute. */
#include "own.h"
#include <pthread.h>
static void *runs(void *unused) {
    for (int i = 0; i < 600; i++) {
        free(malloc(100));
        usleep(100000);
    }
    return unused;
}
int main(void) {
    pthread_t id;
    must(!pthread_create(&id, 0, runs, 0), "a thread");
    pthread_exit(0);
}
