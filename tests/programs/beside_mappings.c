// A block that is written beyond one of its ends, page for page, ends the program as it does without
// heaptape: nothing that can be written was put beside it.
//
//   beside_mappings over|under   writes up to 32 pages beyond an end of a large block
//   beside_mappings touching     prints how many of heaptape's mappings touch one that can be written
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 40, BLOCK = 1 << 20, PAGE = 4096, PAGES = 32 };

static pthread_barrier_t all;

static void *allocate(void *unused) {
    for (int i = 0; i < 100; i++)
        free(malloc(100 + i));
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all);
    return unused;
}

// Starts threads, each of which needs room of the library.
static void start(pthread_t *threads) {
    pthread_barrier_init(&all, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, allocate, NULL);
    pthread_barrier_wait(&all);
}

// Allocates from 2^depth call stacks, whose table needs room of the library too.
__attribute__((noinline)) static long tree(int depth) {
    if (depth == 0) {
        void *block = malloc(10);
        long low = (uintptr_t)block & 1;
        free(block);
        return low;
    }
    long left = tree(depth - 1);
    return left + 2 * tree(depth - 1);
}

static int touching(void) {
    char line[4096];
    uintptr_t last_end = 0;
    int last_is_own = 0, last_is_writable = 0, touching = 0, own = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) != 3)
            return -1;
        int is_own = strstr(line, "/memfd:heaptape") != NULL, is_writable = rights[1] == 'w';
        own += is_own && is_writable;
        touching += from == last_end && is_own != last_is_own && is_writable && last_is_writable;
        last_end = to, last_is_own = is_own, last_is_writable = is_writable;
    }
    fclose(maps);
    fprintf(stderr, "%d mappings\n", own);
    return touching;
}

int main(int count, char **arguments) {
    pthread_t threads[THREADS];
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "touching")) {
        start(threads);
        char *block = malloc(BLOCK);
        printf("%d\n", touching());
        free(block);
    } else if (!strcmp(what, "over")) {
        volatile char *block = malloc(BLOCK);
        for (int page = 0; page < PAGES; page++)
            block[BLOCK + page * PAGE] = 1;
    } else {
        volatile char *block = malloc(BLOCK);
        tree(15);
        for (int page = 1; page <= PAGES; page++)
            block[-page * PAGE] = 1;
    }
    if (!strcmp(what, "touching")) {
        pthread_barrier_wait(&all);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
    }
    return 0;
}
