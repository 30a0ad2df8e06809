// A loop that is written out: its twelve calls have one line and stacks of their own. Nothing holds
// the blocks.
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) static void lose(void) {
    void *volatile block = malloc(300);
    memset(block, 7, 300);
    block = NULL;
}

__attribute__((noinline)) static void scrub(void) {
    volatile char stack[16384];
    memset((void *)stack, 0, sizeof stack);
}

#define THRICE(call) call; call; call
int main(void) {
    THRICE(THRICE(lose())); THRICE(lose());
    scrub();
    return 0;
}
