/* The first allocation of the program comes in a signal handler on an alternate stack. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

static void *kept;

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
    stack_t stack = { .ss_size = 64 << 10 };
    struct sigaction action = { .sa_handler = handles, .sa_flags = SA_ONSTACK };
    stack.ss_sp = mmap(0, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack.ss_sp == MAP_FAILED || sigaltstack(&stack, 0) || sigaction(SIGUSR1, &action, 0)) return 1;
    interrupted();
    return !kept;
}
