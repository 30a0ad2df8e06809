/* Runs until SIGTERM in one of these ways, for scripts/attach-rounds:
   storm N    N threads allocate, resize and free, and check what they have written
   churn N    N threads create and join threads that do so
   forks      forks children that allocate and run true, and checks how they end
   signals N  like storm, while signals arrive at 10 kHz, whose handlers allocate nothing
   realtime N the same with a real-time signal for each thread
   sleeps     one thread waits in epoll_wait
   wakes      one thread waits in epoll_wait without a limit, and writes a line for each SIGUSR1
   sandbox    the same as sleeps in a seccomp sandbox that allows everything
   At the end it prints what went wrong. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* musl-gcc has no headers of the kernel. */
#if __has_include(<linux/filter.h>)
#include <linux/filter.h>
#include <linux/seccomp.h>
#define HAS_SANDBOX 1
#endif
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { MOST = 64, LIVE = 64 };

static volatile sig_atomic_t is_over;
static _Atomic unsigned long wrong, done, handled;

static void ends(int signal) {
    (void)signal;
    is_over = 1;
}

static void counts(int signal) {
    (void)signal;
    handled++;
}

static void allocates(unsigned seed, unsigned long rounds) {
    struct { unsigned char *block; size_t bytes; } live[LIVE] = {0};
    for (unsigned long i = 0; i < rounds && !is_over; i++) {
        seed = seed * 1103515245 + 12345;
        unsigned k = seed >> 16 & (LIVE - 1);
        if (live[k].block && (live[k].block[0] != k || live[k].block[live[k].bytes - 1] != k))
            wrong++;
        size_t bytes = (seed >> 8) % 3000 + 1;
        if (live[k].block && i % 8 == 0) {
            live[k].block = realloc(live[k].block, bytes);
        } else {
            free(live[k].block);
            live[k].block = i % 5 ? malloc(bytes) : calloc(1, bytes);
        }
        live[k].bytes = bytes;
        live[k].block[0] = live[k].block[bytes - 1] = k;
        done++;
    }
    for (unsigned k = 0; k < LIVE; k++)
        free(live[k].block);
}

static void *storms(void *number) {
    allocates((unsigned long)number, ~0ul);
    return NULL;
}

/* A timer of the calling thread, whose real-time signal comes at 10 kHz. */
static void begin_signals(void) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 3};
    struct itimerspec interval = {{0, 100000}, {0, 100000}};
    timer_t timer;
    event.sigev_notify_thread_id = gettid();
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &interval, NULL))
        wrong++;
}

static void *storms_with_signals(void *number) {
    begin_signals();
    return storms(number);
}

static void *short_work(void *number) {
    allocates((unsigned long)number, 200);
    return NULL;
}

static void *churns(void *number) {
    pthread_t thread;
    while (!is_over) {
        if (pthread_create(&thread, NULL, short_work, number) || pthread_join(thread, NULL))
            wrong++;
    }
    return NULL;
}

static void forks(void) {
    while (!is_over) {
        int status, number = done % 100;
        pid_t child = fork();
        if (child == 0) {
            void *volatile block = malloc(100);
            free(block);
            if (number % 2)
                execl("/bin/true", "true", (char *)NULL);
            _exit(number % 2 ? 127 : number);
        }
        /* SIGTERM interrupts the wait. */
        int waited = waitpid(child, &status, 0);
        if (waited < 0 && errno == EINTR && is_over)
            break;
        if (child < 0 || waited != child || !WIFEXITED(status) || WEXITSTATUS(status) != (number % 2 ? 0 : number))
            wrong++;
        done++;
    }
}

static void sleeps(void) {
    struct epoll_event event;
    int epoll = epoll_create1(0);
    while (!is_over) {
        int found = epoll_wait(epoll, &event, 1, 1000);
        wrong += found < 0 && errno == EINTR && !is_over;
        done++;
    }
}

/* Each SIGUSR1 must end the wait with EINTR, and nothing else may. */
static void wakes(void) {
    struct epoll_event event;
    int epoll = epoll_create1(0);
    unsigned long seen = 0;
    while (!is_over) {
        int found = epoll_wait(epoll, &event, 1, -1);
        if (found >= 0 || errno != EINTR || (handled == seen && !is_over))
            wrong++;
        for (; seen < handled; seen++)
            printf("woken\n");
        fflush(stdout);
    }
}

static void enter_sandbox(void) {
#ifdef HAS_SANDBOX
    struct sock_filter allow = {.code = BPF_RET | BPF_K, .k = SECCOMP_RET_ALLOW};
    struct sock_fprog program = {.len = 1, .filter = &allow};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        wrong++;
#else
    wrong++;
#endif
}

int main(int count, char **arguments) {
    const char *kind = count > 1 ? arguments[1] : "storm";
    int threads = count > 2 ? atoi(arguments[2]) : 1;
    pthread_t all[MOST];
    struct sigaction end = {.sa_handler = ends}, often = {.sa_handler = counts, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGALRM, &often, NULL);
    if (!strcmp(kind, "wakes")) {
        often.sa_flags = 0;
        sigaction(SIGUSR1, &often, NULL);
    }
    sigaction(SIGRTMIN + 3, &often, NULL);
    if (!strcmp(kind, "signals")) {
        struct itimerval interval = {{0, 100}, {0, 100}};
        setitimer(ITIMER_REAL, &interval, NULL);
    }
    if (!strcmp(kind, "sandbox"))
        enter_sandbox();
    void *(*work)(void *) = !strcmp(kind, "churn") ? churns : !strcmp(kind, "realtime") ? storms_with_signals : storms;
    printf("ready\n");
    fflush(stdout);
    if (!strcmp(kind, "forks")) {
        forks();
    } else if (!strcmp(kind, "wakes")) {
        wakes();
    } else if (!strcmp(kind, "sleeps") || !strcmp(kind, "sandbox")) {
        sleeps();
    } else {
        for (long i = 0; i < threads && i < MOST; i++)
            pthread_create(&all[i], NULL, work, (void *)(i + 1));
        for (int i = 0; i < threads && i < MOST; i++)
            pthread_join(all[i], NULL);
    }
    printf("%lu wrong\n", wrong);
    return wrong != 0;
}
