/* Blocks that are held from memory that the kernel keeps in one mapping with the stack on which a thread
 * runs at the end:
 * fibers  16 of them, whose stacks are beside each other
 * slab    two threads whose stacks are parts of a larger piece, and data before, between and behind
 * handler data before an alternate stack
 * speed   none: 4 threads replace blocks as fast as they can */
#include "own.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { FIBERS = 16, STACK = 64 << 10, MEGABYTE = 1 << 20, SLOTS = 2000 };

NOINLINE static void *of_fiber(void) { return malloc(201); }
NOINLINE static void *of_data(void) { return malloc(202); }
NOINLINE static void *of_thread(void) { return malloc(203); }
NOINLINE static void *of_slot(unsigned size) { return malloc(size); }

static void *map(size_t size) {
    void *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED, "memory");
    return memory;
}
static void fill(void **data) { for (int i = 0; i < 15; i++) data[i] = of_data(); }

static ucontext_t outside, fibers[FIBERS];
static void fiber(int number) {
    void *volatile kept[4];
    for (int i = 0; i < 4; i++) kept[i] = of_fiber();
    swapcontext(&fibers[number], &outside);
    if (number == 0) exit(0);
    free(kept[0]);
}
static void *waits(void *ready) {
    void *volatile kept[3];
    for (int i = 0; i < 3; i++) kept[i] = of_thread();
    pthread_barrier_wait(ready);
    for (;;) pause();
    return kept[0];
}
static void ends(int signal) { (void)signal; exit(0); }

static void *volatile slots[4][SLOTS];
static void *replaces(void *number) {
    unsigned lane = (unsigned)(long)number, state = lane;
    for (;;) {
        void *volatile *slot = &slots[lane][rand_r(&state) % SLOTS];
        void *old = *slot;
        *slot = old ? 0 : of_slot(24 + rand_r(&state) % 100);
        free(old);
    }
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    pthread_t id;
    if (!strcmp(how, "fibers")) {
        for (int i = 0; i < FIBERS; i++) {
            getcontext(&fibers[i]);
            fibers[i].uc_stack.ss_sp = map(STACK);
            fibers[i].uc_stack.ss_size = STACK;
            fibers[i].uc_link = &outside;
            makecontext(&fibers[i], (void (*)(void))fiber, 1, i);
            swapcontext(&outside, &fibers[i]);
        }
        swapcontext(&outside, &fibers[0]);
    } else if (!strcmp(how, "slab")) {
        char *slab = map(8 * MEGABYTE);
        pthread_barrier_t ready;
        pthread_barrier_init(&ready, 0, 3);
        for (int i = 0; i < 3; i++) fill((void **)(slab + 3 * i * MEGABYTE));
        for (int i = 0; i < 2; i++) {
            pthread_attr_t attributes;
            pthread_attr_init(&attributes);
            pthread_attr_setstack(&attributes, slab + (1 + 3 * i) * MEGABYTE, MEGABYTE);
            must(!pthread_create(&id, &attributes, waits, &ready), "a thread");
        }
        pthread_barrier_wait(&ready);
    } else if (!strcmp(how, "handler")) {
        stack_t stack = { .ss_sp = map(STACK), .ss_size = STACK };
        fill(map(STACK));
        struct sigaction action = { .sa_handler = ends, .sa_flags = SA_ONSTACK };
        must(!sigaltstack(&stack, 0) && !sigaction(SIGTERM, &action, 0), "a handler");
        raise(SIGTERM);
    } else {
        for (long i = 0; i < 4; i++) must(!pthread_create(&id, 0, replaces, (void *)i), "a thread");
        usleep(300000);
    }
    exit(0);
}
