/* keeps_registers CALLS: calls functions of an allocator that change one register, with values in all
 * others that a function may change, as a compiler does that knows the function. Such a compiler may
 * also misalign the stack for the call. Prints how many of them had another value afterwards. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static char blocks[1 << 20];
char *next_block = blocks;

/* reg_take(size) returns a block in rax; reg_drop(block) changes nothing. */
__asm__(".text\n.globl reg_take\n.type reg_take, @function\n"
        "reg_take: mov next_block(%rip), %rax\n add %rdi, next_block(%rip)\n ret\n.size reg_take, . - reg_take\n"
        ".globl reg_drop\n.type reg_drop, @function\n"
        "reg_drop: cmpq $1, next_block(%rip)\n nop\n ret\n.size reg_drop, . - reg_drop\n");

struct values { uint64_t integers[9]; uint64_t vectors[16][2]; };

/* calls_with(function, values, result): loads rax, rcx, rdx, rsi, rdi, r8 to r11 and all vector
 * registers, calls the function, and stores them. */
void calls_with(const char *function, struct values *values, struct values *after);
__asm__(".text\n.globl calls_with\n.type calls_with, @function\ncalls_with:\n"
        "push %rbx\n push %rbp\n push %r12\n mov %rdi, %r12\n mov %rsi, %rbx\n mov %rdx, %rbp\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n movups 72 + 16 * \\n(%rbx), %xmm\\n\n .endr\n"
        "mov (%rbx), %rax\n mov 8(%rbx), %rcx\n mov 16(%rbx), %rdx\n mov 24(%rbx), %rsi\n mov 32(%rbx), %rdi\n"
        "mov 40(%rbx), %r8\n mov 48(%rbx), %r9\n mov 56(%rbx), %r10\n mov 64(%rbx), %r11\n"
        "call *%r12\n"
        "mov %rax, (%rbp)\n mov %rcx, 8(%rbp)\n mov %rdx, 16(%rbp)\n mov %rsi, 24(%rbp)\n mov %rdi, 32(%rbp)\n"
        "mov %r8, 40(%rbp)\n mov %r9, 48(%rbp)\n mov %r10, 56(%rbp)\n mov %r11, 64(%rbp)\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n movups %xmm\\n, 72 + 16 * \\n(%rbp)\n .endr\n"
        "pop %r12\n pop %rbp\n pop %rbx\n ret\n.size calls_with, . - calls_with\n");

/* The same with a misaligned stack. */
void calls_misaligned(const char *function, struct values *values, struct values *after);
__asm__(".text\n.globl calls_misaligned\n.type calls_misaligned, @function\ncalls_misaligned:\n"
        "sub $16, %rsp\n call calls_with\n add $16, %rsp\n ret\n.size calls_misaligned, . - calls_misaligned\n");
extern const char reg_take[], reg_drop[];

typedef void (*caller)(const char *function, struct values *values, struct values *after);

static unsigned differs(caller calls, const char *function, uint64_t argument) {
    struct values before, after;
    uint64_t *all = (uint64_t *)&before, *now = (uint64_t *)&after;
    for (size_t i = 0; i < sizeof before / 8; i++) all[i] = 0x1234567890abcdefull * (i + 3);
    before.integers[4] = argument;
    calls(function, &before, &after);
    unsigned count = 0;
    for (size_t i = function == reg_take; i < sizeof before / 8; i++) count += all[i] != now[i];
    return count;
}
int main(int argc, char **argv) {
    unsigned calls = argc > 1 ? atoi(argv[1]) : 1, changed = 0;
    for (unsigned i = 0; i < calls; i++) {
        char *block = next_block;
        caller calls = i % 2 ? calls_misaligned : calls_with;
        changed += differs(calls, reg_take, 64);
        changed += differs(calls, reg_drop, (uint64_t)block);
    }
    printf("%u\n", changed);
    return 0;
}
