/* Ten coroutines on stacks of 8 KiB, made by makecontext, allocate and free blocks alternately. */
#include "own.h"
#include <ucontext.h>
#define MANY 10
static ucontext_t back, own_context[MANY];
static void *kept[MANY];
NOINLINE void takes_in_coroutine(int i) {
    void *p = own_malloc(2011 + i);
    own_free(kept[i]);
    kept[i] = p;
    KEEP_FRAME();
}
static void body(int i) {
    for (;;) {
        takes_in_coroutine(i);
        swapcontext(&own_context[i], &back);
    }
}
int main(void) {
    static char stacks[MANY][8192] __attribute__((aligned(4096)));
    for (int i = 0; i < MANY; i++) {
        getcontext(&own_context[i]);
        own_context[i].uc_stack.ss_sp = stacks[i];
        own_context[i].uc_stack.ss_size = sizeof stacks[i];
        own_context[i].uc_link = &back;
        makecontext(&own_context[i], (void (*)(void))body, 1, i);
    }
    for (int round = 0; round < 1000; round++)
        for (int i = 0; i < MANY; i++) {
            swapcontext(&back, &own_context[i]);
            own_free(own_malloc(17));
        }
    say("done\n");
    return 0;
}
