/* Allocates one block with each function of the C allocator family, each in its own function,
 * and never frees it. Sizes are primes. */
#include "own.h"
#include <malloc.h>
extern void *reallocarray(void *, size_t, size_t);
#define TAKES(name, call) NOINLINE void *name(void) { void *p = call; KEEP_FRAME(); return p; }
static void *aligned_by_posix(void) { void *p = 0; must(!posix_memalign(&p, 64, 1033), "posix_memalign"); KEEP_FRAME(); return p; }
TAKES(takes_by_malloc, malloc(1009))
TAKES(takes_by_calloc, calloc(7, 289))                  /* 2023 */
TAKES(takes_by_realloc, realloc(0, 1013))
TAKES(takes_by_reallocarray, reallocarray(0, 3, 673))   /* 2019 */
TAKES(takes_by_posix_memalign, aligned_by_posix())
TAKES(takes_by_aligned_alloc, aligned_alloc(32, 1056))
TAKES(takes_by_memalign, memalign(128, 1039))
TAKES(takes_by_valloc, valloc(1049))
TAKES(takes_by_pvalloc, pvalloc(1051))
TAKES(resizes_by_realloc, realloc(malloc(11), 1061))
TAKES(resizes_by_reallocarray, reallocarray(malloc(13), 5, 613)) /* 3065 */
TAKES(takes_by_strdup, strdup("eleven bytes and some more to be found by their number, 70 bytes long"))
int main(void) {
    void *p[] = { takes_by_malloc(), takes_by_calloc(), takes_by_realloc(), takes_by_reallocarray(), takes_by_posix_memalign(),
        takes_by_aligned_alloc(), takes_by_memalign(), takes_by_valloc(), takes_by_pvalloc(), resizes_by_realloc(),
        resizes_by_reallocarray(), takes_by_strdup() };
    for (unsigned i = 0; i < sizeof p / sizeof *p; i++) must(p[i] != 0, "a block");
    say("%zu blocks\n", sizeof p / sizeof *p);
    return 0;
}
