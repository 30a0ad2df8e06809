/* A coroutine on a stack that is made by hand, as libco makes it: below the function that it runs is
 * one word, to which nothing returns. A block of 821 bytes is allocated there, COUNT times (the
 * second argument; 1). The word is
 * start     the start of the function `never`, which ends the program
 * garbage   what a debugging allocator fills memory with
 * small     a small number
 * negative  an address of the kernel */
#include "own.h"

static void *of_main, *of_coroutine;
static volatile unsigned long rounds;

/* Stores the stack pointer, and continues on the other stack. */
void switches(void **from, void *to);
__asm__(".text\n.globl switches\n.type switches,@function\nswitches:\n"
        "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n.size switches, . - switches\n");

/* The function before `never`, which no stack may show: it ends in a jump to itself, so that no call is
 * before the next one. */
void before_never(void);
void never(void);
__asm__(".text\n.globl before_never\n.type before_never,@function\nbefore_never:\n.cfi_startproc\n"
        "nop\n1: jmp 1b\n.cfi_endproc\n.size before_never, . - before_never\n"
        ".globl never\n.type never,@function\nnever:\n.cfi_startproc\n"
        "ud2\n.cfi_endproc\n.size never, . - never\n");

NOINLINE static void *takes(size_t size) {
    void *p = malloc(size);
    KEEP_FRAME();
    return p;
}
NOINLINE static void runs(void) {
    for (unsigned long i = 0;; i++) {
        void *p = takes(821);
        if (i + 1 < rounds) {
            free(p);
            continue;
        }
        switches(&of_coroutine, of_main);
    }
}
int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "start";
    rounds = number(argc, argv, 2, 1);
    uintptr_t word = (uintptr_t)never;
    if (!strcmp(how, "garbage")) word = 0x5a5a5a5a5a5a5a5a;
    if (!strcmp(how, "small")) word = 7;
    if (!strcmp(how, "negative")) word = -4096;
    static uintptr_t stack[8192] __attribute__((aligned(4096)));
    /* Six registers, the function, and the word that it would return to. */
    uintptr_t *top = stack + 8192 - 16;
    top[6] = (uintptr_t)runs;
    top[7] = word;
    switches(&of_main, top);
    say("done\n");
    return 0;
}
