/* A signal handler on an alternate stack of the minimum size allocates. The signal is raised
 * 1,000 times at different depths. */
#include "own.h"
#include <signal.h>
#include <sys/auxv.h>
static void *kept[1000];
static volatile int at;
NOINLINE void takes_in_handler(void) { kept[at] = own_malloc(1301); at = at + 1; }
static void handler(int signal) { (void)signal; takes_in_handler(); KEEP_FRAME(); }
NOINLINE int raises(int depth) { int r = depth ? raises(depth - 1) : raise(SIGUSR1); KEEP_FRAME(); return r; }
int main(void) {
    /* Space for the kernel's frame and one shallow handler. */
    size_t size = getauxval(AT_MINSIGSTKSZ) + 2048;
    stack_t stack = { .ss_sp = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), .ss_size = size };
    must(!sigaltstack(&stack, 0), "sigaltstack");
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
    sigaction(SIGUSR1, &action, 0);
    for (int i = 0; i < 1000; i++) raises(i % 50);
    for (int i = 0; i < 990; i++) own_free(kept[i]);
    say("%d\n", at);
    return 0;
}
