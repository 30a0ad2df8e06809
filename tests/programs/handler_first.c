/* The first allocation of the program comes in a signal handler on an alternate stack. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>

static void *kept;
static char alternate[64 << 10];

__attribute__((noinline)) static void allocates(void) {
    kept = malloc(1709);
    __asm__ volatile("" ::: "memory");
}
static void handles(int signal) {
    (void)signal;
    allocates();
}
__attribute__((noinline)) static void interrupted(void) {
    raise(SIGUSR1);
    __asm__ volatile("" ::: "memory");
}
int main(void) {
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    struct sigaction action = { .sa_handler = handles, .sa_flags = SA_ONSTACK };
    if (sigaltstack(&stack, 0) || sigaction(SIGUSR1, &action, 0)) return 1;
    interrupted();
    return !kept;
}
