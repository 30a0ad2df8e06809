/* One of two libraries of the same layout, so that the loader maps them alternately at the same
 * address. NAME is the name of the function. FRAME differs, so that the unwind rules of one
 * library are wrong for the other. */
#include <stdlib.h>
__attribute__((noinline, noipa)) void *NAME(void *(*take)(size_t), size_t size) {
    volatile char frame[FRAME];
    frame[0] = frame[FRAME - 1] = 1;
    void *p = take(size);
    frame[1] = 2;
    return p;
}
void *(*const plugin_takes)(void *(*)(size_t), size_t) = NAME;
