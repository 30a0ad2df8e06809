/* Keeps 3,000 blocks in a table, and loses 500 of each of five sizes in main and as many in a thread, which
 * has their addresses in an array on its stack when it ends. Old addresses of them are in what an allocator
 * notes of its blocks, and on the stack that glibc keeps for the next thread. */
#include "own.h"
#include <pthread.h>
enum { KEPT = 3000, LOST = 500, SIZES = 5 };
static const size_t sizes[SIZES] = { 24, 64, 200, 1000, 5000 };
static void *table[KEPT];
NOINLINE static void *keep(size_t size) {
    void *block = malloc(size);
    memset(block, 1, size);
    return block;
}
NOINLINE static void *lose(size_t size) {
    void *block = malloc(size);
    memset(block, 2, size);
    return block;
}
NOINLINE static void lose_all(void *volatile *array) {
    for (int i = 0; i < LOST; i++) {
        for (int size = 0; size < SIZES; size++) array[i * SIZES + size] = lose(sizes[size]);
        free(keep(48));
    }
}
static void *thread(void *unused) {
    void *volatile array[LOST * SIZES];
    lose_all(array);
    return unused;
}
int main(void) {
    static void *volatile array[LOST * SIZES];
    pthread_t id;
    for (int i = 0; i < KEPT; i++) table[i] = keep(16 + i % 300);
    lose_all(array);
    memset((void *)array, 0, sizeof array);
    must(!pthread_create(&id, 0, thread, 0) && !pthread_join(id, 0), "a thread");
    for (int i = 0; i < KEPT; i += 3) {
        free(table[i]);
        table[i] = keep(100);
    }
    return 0;
}
