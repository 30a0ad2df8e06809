/* What the programs need and each processor has by another name. */
#ifndef PROCESSOR_H
#define PROCESSOR_H
#include <signal.h>
#include <sys/syscall.h>

/* The arguments of a system call that forks. Newer processors have none of that name. */
#ifdef SYS_fork
#define RAW_FORK SYS_fork
#else
#define RAW_FORK SYS_clone, SIGCHLD, 0, 0, 0, 0
#endif

#ifdef SYS_poll
#define RAW_POLL SYS_poll
#else
#define RAW_POLL SYS_ppoll
#endif

/* The processor's counter, which is the same for all threads, when all earlier instructions are done. */
static inline unsigned long long processor_ticks(void) {
#ifdef __x86_64__
    __builtin_ia32_lfence();
    return __builtin_ia32_rdtsc();
#else
    unsigned long long ticks;
    __asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}
#endif
