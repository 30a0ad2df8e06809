/* Two threads with names leak through one function, from two stacks each. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) static void *keep(size_t size) {
    char *block = malloc(size);
    memset(block, 1, size);
    return block;
}

static void *volatile last;

__attribute__((noinline)) static void first_caller(void) { last = keep(100); }
__attribute__((noinline)) static void second_caller(void) { last = keep(200); }

static void *work(void *name) {
    pthread_setname_np(pthread_self(), name);
    for (int round = 0; round < 500; round++) {
        first_caller();
        second_caller();
    }
    /* The recorder reads the name of a thread while it runs. */
    usleep(100000);
    return NULL;
}

int main(void) {
    pthread_t reader, writer;
    pthread_create(&reader, NULL, work, "reader");
    pthread_create(&writer, NULL, work, "writer");
    pthread_join(reader, NULL);
    pthread_join(writer, NULL);
    return 0;
}
