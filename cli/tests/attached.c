/* Runs for as long as the test likes: for each line "go" of its input all threads allocate and free, for "vfork"
   a thread waits for a child by vfork, which ends with one more byte of the input, for any other line a thread allocates and ends. One more thread waits in epoll_wait. The first argument is the number of threads. It compares the code of the allocator at the end with that at
   the start, and says how often a wait was interrupted. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { BLOCKS = 1000, LEAKED = 3, MOST = 32 };

static pthread_barrier_t begins, ends;
static volatile int is_over;
static void *old[MOST];
static int interruptions;

__attribute__((noinline)) static void *leaks(void) {
    return malloc(107);
}

static void *works(void *number) {
    void *volatile kept;
    for (;;) {
        pthread_barrier_wait(&begins);
        if (is_over)
            return NULL;
        for (int i = 0; i < BLOCKS; i++) {
            void *volatile block = calloc(3, 7);
            block = realloc(block, 200);
            free(block);
        }
        for (int i = 0; i < LEAKED; i++)
            kept = leaks();
        (void)kept;
        free(old[(long)number]);
        old[(long)number] = NULL;
        pthread_barrier_wait(&ends);
    }
}

/* Leaves blocks in the cache of its thread, which glibc frees once more. */
static void *ends_soon(void *nothing) {
    void *volatile blocks[20];
    for (int i = 0; i < 20; i++)
        blocks[i] = malloc(200 + 50 * i);
    for (int i = 0; i < 20; i++)
        free(blocks[i]);
    return nothing;
}

static volatile int has_child;

/* The kernel lets nothing interrupt this thread until the child has ended. */
static void *vforks(void *nothing) {
    char byte;
    if (vfork() == 0) {
        has_child = 1;
        _exit(read(0, &byte, 1) != 1);
    }
    return nothing;
}

static void *waits(void *descriptor) {
    struct epoll_event event;
    int epoll = *(int *)descriptor;
    while (!is_over)
        if (epoll_wait(epoll, &event, 1, 1000) < 0 && errno == EINTR)
            interruptions++;
    return NULL;
}

int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : 1, epoll = epoll_create1(EPOLL_CLOEXEC);
    const char *names[] = {"malloc", "free", "calloc", "realloc", "fork"};
    unsigned char before[5][16];
    char line[16];
    pthread_t all[MOST], waiter;
    for (int i = 0; i < 5; i++)
        memcpy(before[i], dlsym(RTLD_DEFAULT, names[i]), 16);
    setvbuf(stdout, NULL, _IONBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0);
    pthread_barrier_init(&begins, NULL, threads + 1);
    pthread_barrier_init(&ends, NULL, threads + 1);
    for (long i = 0; i < threads; i++) {
        old[i] = malloc(55);
        pthread_create(&all[i], NULL, works, (void *)i);
    }
    pthread_create(&waiter, NULL, waits, &epoll);
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'g') {
            pthread_barrier_wait(&begins);
            pthread_barrier_wait(&ends);
        } else if (line[0] == 'v') {
            pthread_t parent;
            pthread_create(&parent, NULL, vforks, NULL);
            while (!has_child)
                usleep(1000);
            printf("done\n");
            pthread_join(parent, NULL);
            continue;
        } else {
            pthread_t short_one;
            pthread_create(&short_one, NULL, ends_soon, NULL);
            pthread_join(short_one, NULL);
        }
        printf("done\n");
    }
    is_over = 1;
    pthread_barrier_wait(&begins);
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    pthread_join(waiter, NULL);
    int changed = 0;
    for (int i = 0; i < 5; i++)
        changed += memcmp(before[i], dlsym(RTLD_DEFAULT, names[i]), 16) != 0;
    printf("%d functions changed, %d waits interrupted\n", changed, interruptions);
    return 0;
}
