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

#ifdef __x86_64__
#define UNDEFINED_INSTRUCTION "ud2"
#else
#define UNDEFINED_INSTRUCTION "udf 0"
#endif

/* Modes and flags of computing with floating-point numbers: the vector unit's and the old unit's, or the two
 * registers that other processors have. */
static inline __attribute__((always_inline)) void float_states(unsigned state[2]) {
#ifdef __x86_64__
    unsigned short control, status;
    __asm__ volatile("stmxcsr %0\n fnstcw %1\n fnstsw %2" : "=m"(state[0]), "=m"(control), "=m"(status));
    state[1] = (unsigned)control << 16 | (status & 0x7f);
#else
    unsigned long modes, flags;
    __asm__ volatile("mrs %0, fpcr\n mrs %1, fpsr" : "=r"(modes), "=r"(flags));
    state[0] = (unsigned)modes;
    state[1] = (unsigned)flags;
#endif
}

/* Changes a mode that the C library does not know: zeros for small results (4), zeros for small operands or
 * the quiet NaN for all (5), less precision or another format (6). */
static inline void change_float_mode(int which) {
#ifdef __x86_64__
    unsigned short control;
    unsigned state;
    __asm__ volatile("stmxcsr %0\n fnstcw %1" : "=m"(state), "=m"(control));
    if (which == 6) control ^= 0x300; else state ^= which == 4 ? 0x8000 : 0x40;
    __asm__ volatile("ldmxcsr %0\n fldcw %1" : : "m"(state), "m"(control));
#else
    unsigned long modes;
    __asm__ volatile("mrs %0, fpcr" : "=r"(modes));
    modes ^= 1ul << (which == 4 ? 24 : which == 5 ? 25 : 26);
    __asm__ volatile("msr fpcr, %0" : : "r"(modes));
#endif
}
#endif
