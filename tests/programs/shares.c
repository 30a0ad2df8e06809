/* shares SEED ROUNDS FAVORITE THREADS: threads free and replace each other's blocks in a table.
 * FAVORITE is the function that allocates most, and the only one that reaches its lines. */
#include "own.h"
#include <pthread.h>
#define SLOTS 4096
static void *slots[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned favourite, rounds;
static NOINLINE void *small(unsigned roll) {
    if (roll % 3) return malloc(8 + roll % 100);
    return calloc(1, 100 + roll % 300);
}
static NOINLINE void *middle(unsigned roll) {
    if (favourite == 1 && roll % 2)
        return malloc(200 + roll % 1000);
    return malloc(300);
}
static NOINLINE void *large(unsigned roll) {
    if (favourite == 2)
        return malloc(1000 + roll % 5000);
    return malloc(1000 + roll % 5001);
}
static NOINLINE void *only_first(unsigned roll) { return malloc(50 + roll % 50); }
static NOINLINE void *only_second(unsigned roll) { return malloc(60 + roll % 60); }
static NOINLINE void *steady(unsigned roll) { return malloc(64 + 0 * roll); }
static NOINLINE void *grow(void *old, unsigned roll) { return realloc(old, 16 + roll % 900); }
static NOINLINE void drop_one(void *old) { free(old); }
static NOINLINE void drop_other(void *old) { free(old); }
static NOINLINE void *choose(unsigned roll) {
    unsigned which = roll >> 8;
    switch (which % 8 < 3 ? favourite : which % 8) {
    case 0: return small(roll);
    case 1: case 3: return middle(roll);
    case 2: case 4: return large(roll);
    case 5: return favourite == 1 ? only_first(roll) : only_second(roll);
    default: return steady(roll);
    }
}
static NOINLINE void *choose_again(unsigned roll) { void *block = choose(roll); return block; }
static void *work(void *seed) {
    unsigned long state = (unsigned long)seed;
    for (unsigned round = 0; round < rounds; round++) {
        state = state * 6364136223846793005ul + 1442695040888963407ul;
        unsigned roll = state >> 33;
        pthread_mutex_lock(&lock);
        void **slot = &slots[(state >> 20) % SLOTS];
        if (*slot && roll % 8 == 0) {
            *slot = grow(*slot, roll);
        } else {
            if (roll % 5) drop_one(*slot); else drop_other(*slot);
            *slot = roll % 7 ? choose(roll) : choose_again(roll);
        }
        pthread_mutex_unlock(&lock);
    }
    return 0;
}
int main(int count, char **words) {
    must(count == 5, "shares SEED ROUNDS FAVOURITE THREADS");
    unsigned long seed = strtoul(words[1], 0, 10), threads = strtoul(words[4], 0, 10);
    rounds = strtoul(words[2], 0, 10);
    favourite = strtoul(words[3], 0, 10);
    pthread_t others[16];
    must(threads <= 16, "at most 16 threads");
    for (unsigned long i = 0; i < threads; i++) must(!pthread_create(&others[i], 0, work, (void *)(seed + i)), "a thread");
    for (unsigned long i = 0; i < threads; i++) pthread_join(others[i], 0);
    return 0;
}
