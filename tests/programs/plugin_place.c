/* One of two libraries of the same shape, so that the loader puts them at the same place in turn; NAME is the function's. FRAME differs, so
 * that a rule of the one is wrong for the other. */
#include <stdlib.h>
__attribute__((noinline, noipa)) void *NAME(void *(*take)(size_t), size_t size) {
    volatile char frame[FRAME];
    frame[0] = frame[FRAME - 1] = 1;
    void *p = take(size);
    frame[1] = 2;
    return p;
}
void *(*const plugin_takes)(void *(*)(size_t), size_t) = NAME;
