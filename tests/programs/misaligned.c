/* Calls malloc and free with a misaligned stack, from the first call on and from different call
 * sites. */
#include "own.h"
#define CALL(result, function, argument) \
    __asm__ volatile("mov %%rsp, %%rbx\n and $-16, %%rsp\n sub $136, %%rsp\n call " function "@PLT\n mov %%rbx, %%rsp" \
                     : "=a"(result), "+D"(argument) : : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc")
NOINLINE static void pair(size_t size) {
    void *block, *unused;
    CALL(block, "malloc", size);
    CALL(unused, "free", block);
    KEEP_FRAME();
}
NOINLINE static void one(unsigned left);
NOINLINE static void other(unsigned left);
NOINLINE static void branch(unsigned left) {
    if (!left) { pair(24); return; }
    one(left - 1);
    other(left - 1);
    KEEP_FRAME();
}
NOINLINE static void one(unsigned left) { branch(left); KEEP_FRAME(); }
NOINLINE static void other(unsigned left) { branch(left); KEEP_FRAME(); }
int main(void) {
    branch(10);
    say("done\n");
    return 0;
}
