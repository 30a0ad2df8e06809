/* Allocates in a signal handler that interrupts hooks, stubs of the linker, and an allocator which may
   be left at any instruction: it never uses memory twice. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>

#define HITS 400
#define ROOM (1ul << 30)
static char room[ROOM];
static unsigned long used;
static volatile int hits;

__attribute__((noinline)) void *malloc(size_t size)
{
    unsigned long bytes = (size + 31) / 16 * 16, at = __atomic_fetch_add(&used, bytes, __ATOMIC_RELAXED);
    if (at + bytes > ROOM)
        return 0;
    *(size_t *)(room + at) = size;
    return room + at + 16;
}

__attribute__((noinline)) void free(void *block) { __asm__ volatile("" : : "r"(block)); }

__attribute__((noinline)) void *calloc(size_t count, size_t size) { return malloc(count * size); }

__attribute__((noinline)) void *realloc(void *block, size_t size)
{
    void *next = malloc(size);
    size_t old = block ? ((size_t *)block)[-2] : 0;
    if (next)
        memcpy(next, block, old < size ? old : size);
    return next;
}

static void handler(int signal)
{
    (void)signal;
    void *block = malloc(1000);
    free(realloc(block, 2000));
    hits++;
}

__attribute__((noinline)) static int churn(int n)
{
    void *block = malloc(n % 100);
    block = realloc(block, n % 200);
    free(block);
    return n + 1;
}

int main(void)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    int n = 0;
    sigaction(SIGPROF, &action, 0);
    setitimer(ITIMER_PROF, &timer, 0);
    while (hits < HITS)
        n = churn(n);
    memset(&timer, 0, sizeof timer);
    setitimer(ITIMER_PROF, &timer, 0);
    printf("%d hits\n", n ? HITS : 0);
    return 0;
}
