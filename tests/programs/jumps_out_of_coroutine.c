/* A signal handler leaves a coroutine, hooks included, by siglongjmp until JUMPS jumps (300)
 * were made. Then 20,000 pairs of 877 bytes on the stack of the coroutine and 100,000 on the
 * main stack follow. Linked with signal_safe_allocator. */
#include "own.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>
static sigjmp_buf start;
static ucontext_t back, there;
static volatile unsigned long jumps, wanted;
static void handler(int signal) { (void)signal; jumps = jumps + 1; siglongjmp(start, 1); }
NOINLINE static void *undisturbed(void) { void *p = malloc(877); KEEP_FRAME(); return p; }
NOINLINE static void disturbed(unsigned depth) {
    volatile char room[64];
    room[0] = 0;
    if (depth) { disturbed(depth - 1); return; }
    void *p = malloc(100);
    p = realloc(p, 300);
    free(p);
    KEEP_FRAME();
}
static void coroutine(void) {
    struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };
    volatile unsigned depth = 0;
    if (sigsetjmp(start, 1) == 0) setitimer(ITIMER_REAL, &often, 0);
    while (jumps < wanted) disturbed(depth++ % 40);
    setitimer(ITIMER_REAL, &never, 0);
    for (int i = 0; i < 20000; i++) free(undisturbed());
    swapcontext(&there, &back);
}
int main(int argc, char **argv) {
    wanted = number(argc, argv, 1, 300);
    struct sigaction action = { .sa_handler = handler };
    sigaction(SIGALRM, &action, 0);
    static char stack[1 << 16] __attribute__((aligned(4096)));
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = sizeof stack;
    there.uc_link = &back;
    makecontext(&there, coroutine, 0);
    swapcontext(&back, &there);
    for (int i = 0; i < 100000; i++) free(undisturbed());
    say("done\n");
    return 0;
}
