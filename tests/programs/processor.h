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

/* A system call that no library sees, whose further arguments are 0. */
static inline __attribute__((always_inline)) long raw_call(long number, long a, long b, long c) {
#ifdef __x86_64__
    long result;
    register long d __asm__("r10") = 0;
    register long e __asm__("r8") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e) : "rcx", "r11", "memory");
    return result;
#else
    register long call __asm__("x8") = number;
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = 0;
    register long fifth __asm__("x4") = 0;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(call), "r"(second), "r"(third), "r"(fourth), "r"(fifth) : "memory");
    return first;
#endif
}

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
