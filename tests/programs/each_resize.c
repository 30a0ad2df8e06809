/* Every kind of reallocation, and failed ones, which are no events. At the end 3 blocks are
 * live, of 503, 40,009 and 100,003 bytes. */
#include "own.h"
#include <errno.h>
extern void *reallocarray(void *, size_t, size_t);
int main(void) {
    char *a = own_malloc(499);
    a = own_realloc(a, 503);                            /* in place */
    memset(a, 'a', 503);
    char *b = own_malloc(100);
    char *wall = own_malloc(100);
    memset(b, 'b', 100);
    for (size_t n = 200; n < 40000; n += 997) b = own_realloc(b, n); /* moves, then grows at the top */
    b = own_realloc(b, 40009);
    for (int i = 0; i < 100; i++) must(b[i] == 'b', "the bytes moved along");
    char *c = own_malloc(1 << 20);                      /* mmap'd: mremap */
    memset(c, 'c', 1 << 20);
    c = own_realloc(c, 3 << 20);
    must(c[(1 << 20) - 1] == 'c', "mremap kept the bytes");
    c = own_realloc(c, 100003);                         /* shrinks */
    must(c[100002] == 'c', "shrinking kept the bytes");
    errno = 0;
    must(!own_realloc(a, (size_t)1 << 62) && errno == ENOMEM, "too much fails");
    must(!reallocarray(a, (size_t)1 << 33, (size_t)1 << 33) && errno == ENOMEM, "an overflow fails");
    must(a[502] == 'a', "a failed resize keeps the block");
    must(!own_realloc(wall, 0), "to nothing frees");
    char *d = own_realloc(0, 31);                       /* an allocation */
    own_free(d);
    for (int i = 0; i < 1000; i++) {                    /* changes of many sizes, by a factor of two */
        char *p = own_malloc(16 + i), *q = own_malloc(16 + i);
        p = own_realloc(p, 3 * i + 1);
        q = own_realloc(q, i + 1);
        own_free(p);
        own_free(q);
    }
    say("done\n");
    return 0;
}
