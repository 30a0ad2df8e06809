// Allocates while the processor stops after each instruction, and its handler allocates, too, after
// each 500th by chance. So handlers interrupt hooks, and hooks that emit what handlers have left.
// Prints how often the handler allocated. It needs an allocator that may be interrupted anywhere.
#include "own.h"
#include <signal.h>

static unsigned long handled;
static void *passed;
static uint64_t seed = 7919;

static void step(int signal) {
    (void)signal;
    if (rng(&seed) % 500) return;
    // The block is of the handler before this one, and its event may still wait.
    free(passed);
    passed = malloc(1201);
    passed = realloc(passed, 1213);
    handled++;
}

int main(int argc, char **argv) {
    unsigned long rounds = number(argc, argv, 1, 1000);
    struct sigaction action = { .sa_handler = step };
    sigaction(SIGTRAP, &action, 0);
    for (unsigned long i = 0; i <= rounds; i++) {
        // What is found at its first call is found before the processor stops.
        if (i == 1) __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
        void *p = malloc(10);
        p = realloc(p, 1000);
        free(p);
    }
    __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
    free(passed);
    say("%lu\n", handled);
    return 0;
}
