/* A leak below DEPTH calls of one function, and others that call it. */
#include "own.h"
static void *kept[64];
NOINLINE void leaf(unsigned long at) {
    kept[at % 64] = malloc(4099);
    KEEP_FRAME();
}
NOINLINE void inner(unsigned long at) { leaf(at); KEEP_FRAME(); }
NOINLINE void middle(unsigned long at) { inner(at); KEEP_FRAME(); }
NOINLINE void outer(unsigned long at) { middle(at); KEEP_FRAME(); }
NOINLINE void outermost(unsigned long at) { outer(at); KEEP_FRAME(); }
int main(void) {
    for (unsigned long at = 0; at < 64; at++) outermost(at);
    return 0;
}
