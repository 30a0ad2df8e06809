/* Allocates in a signal handler that interrupts a function which calls none, so that its return
   address is in the link register only; in a frame of 40,000 bytes, beside alloca, and below qsort. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define HITS 60
static volatile int hits;
static void *kept[HITS + 2];

static void handler(int signal)
{
    (void)signal;
    if (hits < HITS) {
        kept[hits] = malloc(1000);
        hits++;
    }
}

__attribute__((noinline)) static unsigned leaf(unsigned n)
{
    volatile unsigned x = n;
    for (int i = 0; i < 20000; i++)
        x = x * 1664525u + 1013904223u;
    return x;
}

__attribute__((noinline)) static unsigned middle(unsigned n) { return leaf(n) + 1; }

__attribute__((noinline)) static unsigned outer(unsigned n) { return middle(n) ^ 5; }

__attribute__((noinline)) static void *big_frame(int n)
{
    char bytes[40000];
    memset(bytes, n, sizeof bytes);
    return (char *)malloc(2000 + bytes[n]) + bytes[n + 1] - n;
}

__attribute__((noinline)) static void *with_alloca(int n)
{
    char *bytes = __builtin_alloca(n);
    memset(bytes, 1, n);
    return (char *)malloc(3000) + bytes[n - 1] - 1;
}

__attribute__((noinline)) static int compare(const void *left, const void *right)
{
    void *block = malloc(4000);
    int result = *(const int *)left - *(const int *)right;
    free(block);
    return result + (block == 0);
}

int main(void)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 2000}, {0, 2000}};
    unsigned sum = 0;
    int numbers[20];
    sigaction(SIGPROF, &action, 0);
    setitimer(ITIMER_PROF, &timer, 0);
    while (hits < HITS)
        sum += outer(sum);
    memset(&timer, 0, sizeof timer);
    setitimer(ITIMER_PROF, &timer, 0);
    kept[HITS] = big_frame(3);
    kept[HITS + 1] = with_alloca(500);
    for (int i = 0; i < 20; i++)
        numbers[i] = i * 7 % 20;
    qsort(numbers, 20, sizeof *numbers, compare);
    printf("%d hits\n", hits);
    return 0;
}
