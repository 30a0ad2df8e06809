// Threads wait in many ways for what is in the frame of `main`, or in a block that `main` frees: the
// program ends in many ways, and no thread may notice. One that wakes ends the program with status 9.
// Arguments: how the threads wait, where what they wait for is, how the program ends.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4

// All that a thread may wait for.
struct place {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    pthread_barrier_t barrier;
    sem_t semaphore;
    int word;
    struct pollfd list[2];
    sigset_t set;
    struct timespec time;
    struct iovec vector;
    struct msghdr header;
    char bytes[64];
    int pipe[2], quiet, group;
};

static const char *way;
static int tids[THREADS];
static volatile int stops_now;
// A block that only a register of a waiting thread holds.
static __attribute__((noinline)) void *of_register(void) { return calloc(1, 77); }

static void woken(int error) {
    dprintf(1, "woken from %s: %s\n", way, strerror(error));
    _exit(9);
}

static int is(const char *name) { return strcmp(way, name) == 0; }

static void *waits(void *argument) {
    struct place *place = argument;
    void *volatile held = malloc(100);
    int *own = &tids[__atomic_fetch_add(&stops_now, 1, __ATOMIC_SEQ_CST)];
    __atomic_store_n(own, gettid(), __ATOMIC_SEQ_CST);
    if (is("mutex")) pthread_mutex_lock(&place->mutex);
    if (is("condition") || is("condition_timed")) {
        pthread_mutex_lock(&place->mutex);
        struct timespec far = { 4000000000, 0 };
        if (is("condition")) pthread_cond_wait(&place->condition, &place->mutex);
        else pthread_cond_timedwait(&place->condition, &place->mutex, &far);
    }
    if (is("barrier")) pthread_barrier_wait(&place->barrier);
    if (is("semaphore")) while (sem_wait(&place->semaphore) != 0) {}
    if (is("semaphore_timed")) {
        place->time = (struct timespec){ 4000000000, 0 };
        sem_clockwait(&place->semaphore, CLOCK_REALTIME, &place->time);
    }
    if (is("futex")) syscall(SYS_futex, &place->word, FUTEX_WAIT, 0, NULL, NULL, 0);
    if (is("futex_private")) syscall(SYS_futex, &place->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    // Nobody is told that the word has another value now.
    if (is("futex_changed")) syscall(SYS_futex, &place->quiet, FUTEX_WAIT, 0, NULL, NULL, 0);
    if (is("poll")) poll(place->list, 2, -1);
    if (is("poll_timed")) poll(place->list, 2, 1000000);
    if (is("ppoll")) ppoll(place->list, 2, NULL, &place->set);
    if (is("select") || is("pselect")) {
        fd_set reads;
        FD_ZERO(&reads);
        FD_SET(place->pipe[0], &reads);
        if (is("select")) select(place->pipe[0] + 1, &reads, NULL, NULL, NULL);
        else pselect(place->pipe[0] + 1, &reads, NULL, NULL, NULL, &place->set);
    }
    if (is("sigtimedwait")) {
        place->time = (struct timespec){ 1000000, 0 };
        sigtimedwait(&place->set, NULL, &place->time);
    }
    if (is("sigwaitinfo")) sigwaitinfo(&place->set, NULL);
    if (is("sigsuspend")) {
        sigset_t all;
        sigfillset(&all);
        sigsuspend(&all);
    }
    if (is("nanosleep")) {
        place->time = (struct timespec){ 1000000, 0 };
        nanosleep(&place->time, &place->time);
    }
    if (is("pause")) pause();
    if (is("accept")) {
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        listen(listener, 1);
        socklen_t *length = (socklen_t *)&place->word;
        accept(listener, (struct sockaddr *)place->bytes, length);
    }
    if (is("epoll")) epoll_wait(place->group, (struct epoll_event *)place->bytes, 1, -1);
    if (is("epoll_pwait")) epoll_pwait(place->group, (struct epoll_event *)place->bytes, 1, -1, &place->set);
    if (is("read") && read(place->pipe[0], place->bytes, 1) < 0) woken(errno);
    if (is("readv") && readv(place->pipe[0], &place->vector, 1) < 0) woken(errno);
    if (is("recv") || is("recvmsg")) {
        int sockets[2];
        socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets);
        struct timeval long_time = { 1000000, 0 };
        setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &long_time, sizeof long_time);
        if (is("recv")) recv(sockets[0], place->bytes, 1, 0);
        else recvmsg(sockets[0], &place->header, 0);
    }
    if (is("waitpid")) {
        int status;
        pid_t parent = getpid(), child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            // It may have ended before that.
            if (getppid() != parent) _exit(0);
            pause();
        }
        waitpid(child, &status, 0);
    }
    if (is("register")) {
        // One register has the only reference during the wait; the kernel keeps it, and nobody else does.
#ifdef __aarch64__
        register void *block __asm__("x19") = of_register();
        register long result __asm__("x0") = (long)&place->word;
        register long operation __asm__("x1") = FUTEX_WAIT_PRIVATE;
        register long value __asm__("x2") = 0, timeout __asm__("x3") = 0, number __asm__("x8") = SYS_futex;
        __asm__ volatile("svc #0" : "+r"(result), "+r"(block) : "r"(operation), "r"(value), "r"(timeout), "r"(number) : "memory");
#else
        register void *block __asm__("rbx") = of_register();
        long result = SYS_futex;
        register long timeout __asm__("r10") = 0;
        __asm__ volatile("syscall"
                         : "+a"(result), "+r"(block)
                         : "D"(&place->word), "S"((long)FUTEX_WAIT_PRIVATE), "d"(0L), "r"(timeout)
                         : "rcx", "r11", "memory");
#endif
        free(block);
    }
    if (is("spins"))
        for (;;) __atomic_fetch_add(own, 0, __ATOMIC_RELAXED);
    woken(errno);
    return held;
}

static void overwrite(void) {
    volatile unsigned char bytes[8192];
    for (unsigned at = 0; at < sizeof bytes; at++) bytes[at] = 0xa5;
    for (int number = 0; number < 100; number++) {
        unsigned char *block = malloc(sizeof(struct place));
        memset(block, 0xa5, sizeof(struct place));
        __asm__ volatile("" : : "r"(block) : "memory");
        free(block);
    }
}

static int is_asleep(int tid) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    int file = open(path, O_RDONLY);
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    char *state = strrchr(text, ')');
    return state != NULL && (state[2] == 'S' || is("spins"));
}

static const char *end;
static int ends(const char *name) { return strcmp(end, name) == 0; }

static void exits(int signal) {
    (void)signal;
    exit(3);
}

static void *exits_in_thread(void *unused) {
    (void)unused;
    exit(4);
}

static void *exits_late(void *unused) {
    (void)unused;
    usleep(100000);
    dprintf(1, "late\n");
    return NULL;
}

static void handled(int signal) { (void)signal; }

static void *signals(void *unused) {
    (void)unused;
    sigset_t none;
    sigemptyset(&none);
    for (;;) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {}
        usleep(500);
    }
}

static __attribute__((noinline)) void start(struct place *place) {
    memset(place, 0, sizeof *place);
    pthread_mutex_init(&place->mutex, NULL);
    if (is("mutex")) pthread_mutex_lock(&place->mutex);
    pthread_cond_init(&place->condition, NULL);
    pthread_barrier_init(&place->barrier, NULL, THREADS + 1);
    sem_init(&place->semaphore, 0, 0);
    if (pipe(place->pipe) != 0) exit(100);
    place->list[0] = place->list[1] = (struct pollfd){ place->pipe[0], POLLIN, 0 };
    sigemptyset(&place->set);
    sigaddset(&place->set, SIGUSR1);
    place->vector = (struct iovec){ place->bytes, 1 };
    place->header = (struct msghdr){ .msg_iov = &place->vector, .msg_iovlen = 1 };
    place->word = is("accept") ? 16 : 0;
    place->group = epoll_create1(0);
    // Only the others handle signals: the kernel gives those of the process to `main` if it can.
    sigset_t usr, before;
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    sigaddset(&usr, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &usr, &before);
    for (int number = 0; number < THREADS && !is("nobody"); number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, waits, place) != 0) exit(101);
        pthread_detach(thread);
        int *tid = &tids[number];
        while (__atomic_load_n(tid, __ATOMIC_SEQ_CST) == 0 || !is_asleep(*tid)) usleep(500);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    usleep(2000);
    __atomic_store_n(&place->quiet, 1, __ATOMIC_SEQ_CST);
}

static __attribute__((noinline)) void scrub(void) {
    volatile char bytes[16384];
    for (unsigned at = 0; at < sizeof bytes; at++) bytes[at] = 0;
}

int main(int count, char **arguments) {
    struct place frame, *block = NULL;
    if (count != 4) return 102;
    way = arguments[1];
    end = arguments[3];
    atexit(overwrite);
    if (strcmp(arguments[2], "block") == 0) {
        block = malloc(sizeof *block);
        start(block);
    } else {
        start(&frame);
    }
    dprintf(1, "over\n");
    if (ends("dumpable")) prctl(PR_SET_DUMPABLE, 0);
    if (ends("children")) {
        struct sigaction action = { .sa_handler = handled };
        sigaction(SIGCHLD, &action, NULL);
        pthread_t thread;
        pthread_create(&thread, NULL, signals, NULL);
        usleep(20000);
    }
    if (ends("handler")) {
        signal(SIGALRM, exits);
        raise(SIGALRM);
    }
    if (ends("_exit")) _exit(5);
    if (ends("abort")) abort();
    if (ends("thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, exits_in_thread, NULL);
        pthread_join(thread, NULL);
    }
    if (ends("both")) {
        pthread_t thread;
        pthread_create(&thread, NULL, exits_in_thread, NULL);
        exit(4);
    }
    if (ends("last")) {
        pthread_t thread;
        pthread_create(&thread, NULL, exits_late, NULL);
        pthread_exit(NULL);
    }
    scrub();
    free(block);
    overwrite();
    return 0;
}
