// Calls what the library replaces, and allocates in a handler after each instruction, of the library
// as well as of its own. Prints how often. It needs an allocator that may be interrupted anywhere.
#define _GNU_SOURCE
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

void *operator_new(size_t) __asm__("_Znwm");
void operator_delete(void *) __asm__("_ZdlPv");

static volatile long steps;
static void *volatile kept;

__attribute__((noinline)) static void step(int signal) {
    (void)signal;
    steps++;
    kept = malloc(77);
}

// The processor's trap flag: a signal after each instruction, but not in the handler.
static inline void set_trap(void) {
    __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
}
static inline void clear_trap(void) {
    __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
}

__attribute__((noinline)) static void allocates(void) {
    void *block = malloc(10), *other = calloc(3, 10);
    block = realloc(block, 1000);
    other = reallocarray(other, 20, 10);
    free(block);
    free(other);
    free(memalign(64, 20));
    free(aligned_alloc(64, 64));
    if (posix_memalign(&block, 128, 30) == 0)
        free(block);
    free(valloc(10));
    block = pvalloc(10);
    malloc_usable_size(block);
    free(block);
}

__attribute__((noinline)) static void uses_operators(void) {
    operator_delete(operator_new(100));
}

__attribute__((noinline)) static void maps(void) {
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pages = mremap(pages, 8192, 16384, MREMAP_MAYMOVE);
    madvise(pages, 4096, MADV_DONTNEED);
    munmap(pages, 16384);
}

__attribute__((noinline)) static void calls_the_kernel(void) {
    syscall(SYS_getpid);
    syscall(SYS_prctl, PR_GET_DUMPABLE);
    prctl(PR_GET_DUMPABLE);
}

int main(void) {
    struct sigaction action = {.sa_handler = step};
    sigaction(SIGTRAP, &action, NULL);
    // What is found at its first call is found before.
    for (int round = 0; round < 2; round++) {
        if (round == 1)
            set_trap();
        allocates();
        uses_operators();
        maps();
        calls_the_kernel();
    }
    clear_trap();
    printf("%ld\n", steps);
    return 0;
}
