/* Makes the page with its own ELF header unreadable before it allocates. Linked with -z now. */
#include "own.h"
extern const char __ehdr_start;
int main(void) {
    must(!mprotect((void *)((uintptr_t)&__ehdr_start & ~4095ul), 4096, PROT_NONE), "hidden");
    for (int i = 0; i < 1000; i++) free(malloc(700));
    must(malloc(701) != 0, "a block");
    say("hidden\n");
    return 0;
}
