/* Call chains that are known by name, each with a leak of a different size at the end: plain,
 * alloca, a frame aligned to 64 bytes, variable-length arrays, a callback from libc, a signal
 * frame, a thread, an atexit handler, recursion, a call by pointer in a loop. */
#include "own.h"
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
void *volatile sink;
volatile int zero;
NOINLINE void leaf(size_t n) { sink = malloc(n); KEEP_FRAME(); }
NOINLINE void plain_c(void) { leaf(3001); KEEP_FRAME(); }
NOINLINE void plain_b(void) { plain_c(); KEEP_FRAME(); }
NOINLINE void plain_a(void) { plain_b(); KEEP_FRAME(); }
NOINLINE void with_alloca(int n) { char *p = alloca(n); p[0] = 1; sink = p; leaf(3011); KEEP_FRAME(); }
NOINLINE void with_aligned_frame(void) { char x[64] __attribute__((aligned(64))); sink = x; x[zero] = 1; leaf(3019); KEEP_FRAME(); }
NOINLINE void with_aligned_alloca(int n) {
    char x[64] __attribute__((aligned(64)));
    sink = x;
    char *p = alloca(n);
    sink = p;
    leaf(3023);
    KEEP_FRAME();
}
NOINLINE void with_variable_array(int n) { char x[n]; sink = x; x[zero] = 1; leaf(3037); KEEP_FRAME(); }
static int compares(const void *a, const void *b) {
    static int done;
    if (!done++) leaf(3041);
    return *(const int *)a - *(const int *)b;
}
NOINLINE void sorts(void) { int v[4] = { 4, 2, 3, 1 }; qsort(v, 4, sizeof *v, compares); KEEP_FRAME(); }
static void handles(int signal) { (void)signal; leaf(3049); KEEP_FRAME(); }
NOINLINE void interrupted(void) { raise(SIGUSR1); KEEP_FRAME(); }
static void *in_thread(void *v) { leaf(3061); KEEP_FRAME(); return v; }
static void at_exit(void) { leaf(3067); KEEP_FRAME(); }
NOINLINE int recurses(int depth) { int r = depth ? recurses(depth - 1) + 1 : (leaf(3079), 0); KEEP_FRAME(); return r; }
static void by_pointer(void) { leaf(3083); KEEP_FRAME(); }
void (*volatile pointer)(void) = by_pointer;
/* Equal frames below two callers, alternately: a stack cache must not confuse them. */
NOINLINE void twin_leaf(size_t n) { void *p = malloc(n); if (n > 3200) free(p); else sink = p; KEEP_FRAME(); }
NOINLINE void twin_b(size_t n) { twin_leaf(n); KEEP_FRAME(); }
NOINLINE void twin_one(size_t n) { twin_b(n); KEEP_FRAME(); }
NOINLINE void twin_two(size_t n) { twin_b(n); KEEP_FRAME(); }
int main(void) {
    atexit(at_exit);
    plain_a();
    with_alloca(100 + zero);
    with_aligned_frame();
    with_aligned_alloca(200 + zero);
    with_variable_array(300 + zero);
    sorts();
    signal(SIGUSR1, handles);
    interrupted();
    pthread_t id;
    must(!pthread_create(&id, 0, in_thread, 0), "a thread");
    pthread_join(id, 0);
    recurses(300);
    for (int i = 0; i < 3; i++) pointer();
    for (int i = 0; i < 1000; i++) { twin_one(3300); twin_two(3301); }
    twin_one(3089);
    twin_two(3109);
    say("done\n");
    return 0;
}
