// A block for each kind of root, blocks without one, and one whose pointer is hidden. Each has a size
// of its own.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static _Thread_local void *volatile in_thread;
static _Thread_local void *volatile in_main;
static void *volatile *volatile mapping;
static volatile uintptr_t hidden;
static void *volatile grown;
static void *volatile large;
static void *volatile shrunk;
static void *volatile inside;
static char *volatile code;
static int ready;

#define OF(NAME, SIZE) __attribute__((noinline)) static void *NAME(void) { return calloc(1, SIZE); }
OF(of_stack, 201)
OF(of_thread, 202)
OF(of_mapping, 203)
OF(of_xor, 204)
OF(of_realloc, 205)
OF(of_inside, 206)
OF(of_main, 207)
OF(of_main_data, 209)
OF(of_code, 210)
OF(of_lost, 208)
OF(of_large, 300000)
OF(of_shrunk, 400000)

static void *run(void *unused) {
    (void)unused;
    void *volatile block = of_stack();
    in_thread = of_thread();
    __atomic_store_n(&ready, 1, __ATOMIC_SEQ_CST);
    for (;;)
        pause();
    return block;
}

__attribute__((noinline)) static void lose(void) {
    void *volatile block;
    for (int number = 0; number < 50; number++)
        block = of_lost();
    block = 0;
    (void)block;
}

__attribute__((noinline)) static void scrub(void) {
    volatile char stack[16384];
    memset((void *)stack, 0, sizeof stack);
}

__attribute__((noinline)) static void plant(void) {
    // It keeps its mapping, which the kernel may join with the next one.
    shrunk = realloc(of_shrunk(), 211);
    mapping = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mapping[1000] = of_mapping();
    // The kernel may join its mapping with the one before.
    large = of_large();
    // An instruction of a compiler at run time: mov rax, ADDRESS.
    code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *in_code = of_code();
    memcpy(code + 1235, &in_code, sizeof in_code);
    in_code = 0;
    hidden = (uintptr_t)of_xor() ^ UINT64_C(0x5555555555555555);
    grown = realloc(of_realloc(), 100000);
    inside = (char *)of_inside() + 100;
    in_main = of_main_data();
    lose();
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, run, 0);
    void *volatile block = of_main();
    plant();
    scrub();
    while (!__atomic_load_n(&ready, __ATOMIC_SEQ_CST))
        usleep(100);
    exit(block == 0);
}
