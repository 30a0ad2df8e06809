/* Prints what a program can observe of the allocator's interface, case by case: results,
 * alignment, usable sizes, contents and errno, with a canary in errno before each call. The text
 * must be the same with and without a recorder. */
#include "own.h"
#include <errno.h>
#include <malloc.h>
extern void *reallocarray(void *, size_t, size_t);
#define CANARY 0x5a5a
static int cases;
static void tell(const char *what, size_t a, size_t b, void *p, int result, size_t size) {
    int error = errno;
    size_t usable = p ? malloc_usable_size(p) : 0;
    must(usable >= size || !p, "usable bytes");
    say("%3d %s(%zu, %zu): %s, result %d, errno %s%d, aligned %lu, usable %zu\n", ++cases, what, a, b, p ? "block" : "null", result,
        error == CANARY ? "kept " : "", error == CANARY ? 0 : error, p ? (unsigned long)(uintptr_t)p & -(uintptr_t)p & 15 : 0, usable);
}
static const size_t sizes[] = { 0, 1, 7, 8, 15, 16, 17, 24, 25, 63, 64, 100, 127, 128, 1000, 1032, 1033, 4095, 4096, 65536, 131072, 200000,
    1 << 20, (size_t)1 << 47, PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 1, SIZE_MAX - 4096, SIZE_MAX - 15, SIZE_MAX };
static const size_t aligns[] = { 0, 1, 2, 3, 4, 8, 12, 16, 24, 32, 64, 100, 4096, 65536, 1 << 20 };
#define EACH(list, i) for (size_t i = 0; i < sizeof list / sizeof *list; i++)
#define CALL(what, a, b, size, call) do { errno = CANARY; void *p = call; tell(what, a, b, p, 0, size); errno = CANARY; free(p); \
    must(errno == CANARY, "free keeps errno"); } while (0)
int main(void) {
    void *(*volatile m)(size_t) = malloc;
    void *(*volatile c)(size_t, size_t) = calloc;
    void *(*volatile r)(void *, size_t) = realloc;
    void *(*volatile ra)(void *, size_t, size_t) = reallocarray;
    EACH(sizes, i) CALL("malloc", sizes[i], 0, sizes[i], m(sizes[i]));
    EACH(sizes, i) CALL("calloc", sizes[i], 1, sizes[i], c(sizes[i], 1));
    EACH(sizes, i) CALL("realloc null", sizes[i], 0, sizes[i], r(0, sizes[i]));
    CALL("calloc", 0, 0, 0, c(0, 0));
    CALL("calloc", SIZE_MAX, 2, 0, c(SIZE_MAX, 2));
    CALL("calloc", (size_t)1 << 32, (size_t)1 << 32, 0, c((size_t)1 << 32, (size_t)1 << 32));
    CALL("calloc", SIZE_MAX, 0, 0, c(SIZE_MAX, 0));
    CALL("reallocarray null", SIZE_MAX, 2, 0, ra(0, SIZE_MAX, 2));
    CALL("reallocarray null", 3, 0, 0, ra(0, 3, 0));
    CALL("reallocarray null", 3, 111, 333, ra(0, 3, 111));
    EACH(aligns, i) {
        void *p = (void *)8;
        errno = CANARY;
        int result = posix_memalign(&p, aligns[i], 77);
        if (result) must(p == (void *)8, "a failed posix_memalign leaves the pointer");
        tell("posix_memalign", aligns[i], 77, result ? 0 : p, result, 77);
        must(result || (uintptr_t)p % aligns[i] == 0, "its alignment");
        if (!result) free(p);
        if (aligns[i] && !(aligns[i] & (aligns[i] - 1))) {
            CALL("aligned_alloc", aligns[i], 320, 320, aligned_alloc(aligns[i], 320));
            CALL("memalign", aligns[i], 321, 321, memalign(aligns[i], 321));
        }
    }
    void *p = (void *)8;
    errno = CANARY;
    int result = posix_memalign(&p, 64, SIZE_MAX - 100);
    tell("posix_memalign", 64, SIZE_MAX - 100, 0, result, 0);
    CALL("memalign", 64, SIZE_MAX - 100, 0, memalign(64, SIZE_MAX - 100));
    CALL("aligned_alloc", 64, SIZE_MAX - 100, 0, aligned_alloc(64, SIZE_MAX - 100));
    CALL("valloc", 0, 0, 0, valloc(0));
    CALL("valloc", 5, 0, 5, valloc(5));
    CALL("valloc", SIZE_MAX, 0, 0, valloc(SIZE_MAX));
    CALL("pvalloc", 0, 0, 0, pvalloc(0));
    CALL("pvalloc", 4097, 0, 4097, pvalloc(4097));
    CALL("pvalloc", SIZE_MAX, 0, 0, pvalloc(SIZE_MAX));
    EACH(sizes, i) {                                    /* resizes of a filled block */
        char *q = m(300);
        memset(q, 'q', 300);
        errno = CANARY;
        char *t = r(q, sizes[i]);
        tell("realloc", 300, sizes[i], t, 0, sizes[i]);
        for (size_t k = 0; t && k < sizes[i] && k < 300; k++) must(t[k] == 'q', "bytes kept");
        if (t) free(t); else if (sizes[i]) { must(q[299] == 'q', "old block kept"); free(q); }
    }
    char *filled = m(100);
    memset(filled, 0xff, 100);
    free(filled);
    char *zeros = c(10, 10);
    for (int i = 0; i < 100; i++) must(zeros[i] == 0, "calloc gives zeros");
    errno = CANARY;
    void *kept = ra(zeros, SIZE_MAX / 2, 3);
    tell("reallocarray", SIZE_MAX / 2, 3, kept, 0, 0);
    errno = CANARY;
    zeros = ra(zeros, 7, 70);
    tell("reallocarray", 7, 70, zeros, 0, 490);
    errno = CANARY;
    free(zeros);
    free(0);
    must(errno == CANARY, "free keeps errno");
    say("usable of null %zu\n", malloc_usable_size(0));
    struct mallinfo2 info = mallinfo2();
    say("mmapped %zu\n", info.hblks);
    return 0;
}
