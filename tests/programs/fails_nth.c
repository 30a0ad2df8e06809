/* Preloaded into heaptape: allocations fail from the FAILS_FROM-th on, or only that one with
 * FAILS_ONCE. A forked child continues the count. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static _Atomic long count;
static long from;
static int once;

__attribute__((constructor)) static void start(void) {
    char exe[4096] = "";
    const char *text = getenv("FAILS_FROM");
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0 || !strstr(exe, "/heaptape") || !text) return;
    once = getenv("FAILS_ONCE") != 0;
    from = atol(text);
}
static int fails(void) {
    if (!from) return 0;
    long number = ++count;
    if (once ? number != from : number < from) return 0;
    errno = ENOMEM;
    return 1;
}
void *malloc(size_t size) { return fails() ? 0 : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return fails() ? 0 : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return fails() ? 0 : __libc_realloc(old, size); }
int posix_memalign(void **out, size_t align, size_t size) {
    void *block = fails() ? 0 : __libc_memalign(align, size);
    if (!block) return ENOMEM;
    *out = block;
    return 0;
}
void *aligned_alloc(size_t align, size_t size) { return fails() ? 0 : __libc_memalign(align, size); }
