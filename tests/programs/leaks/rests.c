/* Grows, and then works without growing for three times as long. Pauses are marked as in labelled.c. */
#include <stdlib.h>

static void *volatile block;

__attribute__((noinline)) static void mark_pause(void) {
    block = malloc(13);
    free(block);
}

__attribute__((noinline)) static void grow(void) { block = malloc(200); }

__attribute__((noinline)) static void work(void) {
    block = malloc(64);
    free(block);
}

int main(void) {
    for (int step = 0; step < 1000; step++) {
        grow();
        mark_pause();
    }
    for (int step = 0; step < 3000; step++) {
        work();
        mark_pause();
    }
    return 0;
}
