// Three phases with pauses between them: `early` and `late` allocate and free, and `keeps` leaks
// in both. For a time range, the page must show the functions that ran in it (`noipa` keeps
// equal functions apart). Usage: phases [more]. With `more`, `late` allocates twice as much.
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void *volatile kept;

__attribute__((noipa)) static void *early(size_t size) { return malloc(size); }
__attribute__((noipa)) static void *late(size_t size) { return malloc(size); }
__attribute__((noipa)) static void keeps(size_t size) { kept = malloc(size); }

static void *first(void *unused) {
    (void)unused;
    void *held[100];
    for (int i = 0; i < 100; i++) {
        held[i] = early(1000);
        keeps(64);
        usleep(300);
    }
    for (int i = 0; i < 100; i++) free(held[i]);
    return NULL;
}

int main(int argc, char **argv) {
    (void)argv;
    pthread_t thread;
    if (pthread_create(&thread, NULL, first, NULL) != 0) return 1;
    pthread_join(thread, NULL);
    usleep(60000);
    void *held[100];
    for (int i = 0; i < 100; i++) {
        held[i] = late(argc > 1 ? 4000 : 2000);
        keeps(64);
        usleep(300);
    }
    for (int i = 0; i < 100; i++) free(held[i]);
    usleep(20000);
    return 0;
}
