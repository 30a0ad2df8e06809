/* A malloc of the program's own that says to heaptape.h what it does, under a lock that it cannot take
 * twice: what looks for the library must not allocate. */
#include "../../preload/include/heaptape.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(16) char memory[1 << 20];
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *malloc(size_t size)
{
    pthread_mutex_lock(&lock);
    size_t *block = (size_t *)(memory + used) + 2;
    used += (size + 31) & ~(size_t)15;
    block[-1] = size;
    heaptape_alloc("own", block, size);
    pthread_mutex_unlock(&lock);
    return block;
}

void free(void *block)
{
    pthread_mutex_lock(&lock);
    heaptape_free(block);
    pthread_mutex_unlock(&lock);
}

void *calloc(size_t count, size_t size)
{
    return memset(malloc(count * size), 0, count * size);
}

void *realloc(void *old, size_t size)
{
    size_t before = old ? ((size_t *)old)[-1] : 0;
    void *block = malloc(size);
    memcpy(block, old ? old : block, before < size ? before : size);
    free(old);
    return block;
}

static void *run(void *unused)
{
    for (int block = 0; block < 10; block++) {
        void *volatile short_lived = malloc(1234);
        free(short_lived);
    }
    return unused;
}

int main(void)
{
    pthread_t threads[3];
    for (int thread = 0; thread < 3; thread++)
        if (pthread_create(&threads[thread], 0, run, 0))
            return 1;
    for (int thread = 0; thread < 3; thread++)
        pthread_join(threads[thread], 0);
    void *volatile kept[] = {malloc(3210), malloc(3210)};
    return !kept[1];
}
