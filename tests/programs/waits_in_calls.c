/* Threads that each wait in a system call which signal(7) lists as interrupted by a stop, or begun
 * again after one. Says "ready" when all wait. When its standard input ends, it names the calls that
 * have returned, which none does by itself. */
#define _GNU_SOURCE
#include "own.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/sem.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>

static char buffer[1 << 16];
static struct timeval limit = { 600, 0 };
static struct timespec long_time = { 600, 0 };

/* One end of a pair of sockets with time limits, whose buffers are full. */
static int end(int type, int is_full) {
    int pair[2];
    must(!socketpair(AF_UNIX, type, 0, pair), "a pair");
    must(!setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "a time limit");
    must(!setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), "a time limit");
    while (is_full && send(pair[0], buffer, 4096, MSG_DONTWAIT) > 0) {}
    return pair[0];
}
static int listener(struct sockaddr_un *name) {
    static int count;
    int made = socket(AF_UNIX, SOCK_STREAM, 0);
    *name = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(name->sun_path + 1, 60, "waits-%d-%d", getpid(), __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
    must(made >= 0 && !bind(made, (void *)name, sizeof *name) && !listen(made, 0), "a listener");
    must(!setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "a time limit");
    return made;
}
static struct iovec part = { buffer, 4096 };
static struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
static sigset_t usr;
static int semaphores[2];

static int do_recv(void) { return recv(end(SOCK_DGRAM, 0), buffer, 9, 0); }
static int do_recvmsg(void) { struct msghdr own = message; return recvmsg(end(SOCK_STREAM, 0), &own, 0); }
static int do_recvmmsg(void) { struct mmsghdr own = { message, 0 }; return recvmmsg(end(SOCK_DGRAM, 0), &own, 1, 0, 0); }
static int do_read(void) { return read(end(SOCK_STREAM, 0), buffer, 9); }
static int do_readv(void) { return readv(end(SOCK_STREAM, 0), &part, 1); }
static int do_send(void) { return send(end(SOCK_STREAM, 1), buffer, 4096, 0); }
static int do_sendmsg(void) { return sendmsg(end(SOCK_STREAM, 1), &message, 0); }
static int do_sendmmsg(void) { struct mmsghdr own = { message, 0 }; return sendmmsg(end(SOCK_STREAM, 1), &own, 1, 0); }
static int do_write(void) { return write(end(SOCK_STREAM, 1), buffer, 4096); }
static int do_writev(void) { return writev(end(SOCK_STREAM, 1), &part, 1); }
static int do_preadv2(void) { return preadv2(end(SOCK_STREAM, 0), &part, 1, -1, 0); }
static int do_pwritev2(void) { return pwritev2(end(SOCK_STREAM, 1), &part, 1, -1, 0); }
static int do_sendfile(void) { return sendfile(end(SOCK_STREAM, 1), open("/proc/self/exe", O_RDONLY), 0, 4096); }
static int do_splice_from(void) { int both[2]; must(!pipe(both), "a pipe"); return splice(end(SOCK_STREAM, 0), 0, both[1], 0, 9, 0); }
static int do_splice_to(void) {
    int both[2];
    must(!pipe(both) && write(both[1], buffer, 4096) == 4096, "a pipe with bytes");
    return splice(both[0], 0, end(SOCK_STREAM, 1), 0, 4096, 0);
}
static int do_accept(void) { struct sockaddr_un name; return accept(listener(&name), 0, 0); }
static int do_accept4(void) { struct sockaddr_un name; return accept4(listener(&name), 0, 0, SOCK_CLOEXEC); }
static int do_connect(void) {
    struct sockaddr_un name;
    listener(&name);
    for (;;) {
        int made = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (!connect(made, (void *)&name, sizeof name)) continue;
        must(!setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), "a time limit");
        must(!fcntl(made, F_SETFL, 0), "a socket that waits");
        return connect(made, (void *)&name, sizeof name);
    }
}
static int do_epoll_wait(void) { struct epoll_event event; return epoll_wait(epoll_create1(0), &event, 1, -1); }
static int do_epoll_pwait(void) { struct epoll_event event; return epoll_pwait(epoll_create1(0), &event, 1, -1, &usr); }
static int do_semop(void) { struct sembuf take = { 0, -1, 0 }; return semop(semaphores[0], &take, 1); }
static int do_semtimedop(void) { struct sembuf take = { 0, -1, 0 }; return semtimedop(semaphores[1], &take, 1, &long_time); }
static int do_sigtimedwait(void) { siginfo_t info; return sigtimedwait(&usr, &info, &long_time); }
static int do_sigwaitinfo(void) { siginfo_t info; return sigwaitinfo(&usr, &info); }
static int do_nanosleep(void) { return nanosleep(&long_time, 0); }
static int do_clock_nanosleep(void) { return clock_nanosleep(CLOCK_MONOTONIC, 0, &long_time, 0); }
static int do_poll(void) { struct pollfd one = { end(SOCK_STREAM, 0), POLLIN, 0 }; return poll(&one, 1, -1); }
static int do_ppoll(void) { struct pollfd one = { end(SOCK_STREAM, 0), POLLIN, 0 }; return ppoll(&one, 1, &long_time, &usr); }
static int do_select(void) { struct timeval own = limit; return select(0, 0, 0, 0, &own); }
static int do_pselect(void) { return pselect(0, 0, 0, 0, &long_time, &usr); }
static int do_eventfd(void) { return read(eventfd(0, 0), buffer, 8); }
static int do_pipe(void) { int both[2]; must(!pipe(both), "a pipe"); return read(both[0], buffer, 8); }

static struct { const char *name; int (*call)(void); volatile int result; volatile pid_t thread; } calls[] = {
#define CALL(name) { #name, do_##name, 0, 0 },
    CALL(recv) CALL(recvmsg) CALL(recvmmsg) CALL(read) CALL(readv) CALL(send) CALL(sendmsg) CALL(sendmmsg) CALL(write)
    CALL(writev) CALL(accept) CALL(accept4) CALL(connect) CALL(epoll_wait) CALL(epoll_pwait) CALL(semop)
    CALL(semtimedop) CALL(sigtimedwait) CALL(sigwaitinfo) CALL(nanosleep) CALL(clock_nanosleep) CALL(poll) CALL(ppoll)
    CALL(select) CALL(pselect) CALL(eventfd) CALL(pipe) CALL(preadv2) CALL(pwritev2) CALL(sendfile) CALL(splice_from)
    CALL(splice_to)
};
enum { COUNT = sizeof calls / sizeof *calls };

static void *wait_in(void *number) {
    size_t index = (size_t)number;
    calls[index].thread = (pid_t)syscall(SYS_gettid);
    int result = calls[index].call();
    calls[index].result = result < 0 ? errno : -1;
    return 0;
}
static int sleeps(pid_t thread) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    int file = open(path, O_RDONLY);
    if (file < 0) return 0;
    long length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 && strstr(text, ") S ");
}
int main(void) {
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr, 0);
    for (int index = 0; index < 2; index++) must((semaphores[index] = semget(IPC_PRIVATE, 1, 0600)) >= 0, "semaphores");
    for (size_t index = 0; index < COUNT; index++) {
        pthread_t thread;
        must(!pthread_create(&thread, 0, wait_in, (void *)index), "a thread");
        /* Asleep at 20 looks: what it does before the call does not wait. */
        for (int looks = 0; looks < 20; usleep(200)) looks = calls[index].thread && sleeps(calls[index].thread) ? looks + 1 : 0;
    }
    say("ready\n");
    while (read(0, buffer, 1) > 0) free(malloc(10));
    for (size_t index = 0; index < COUNT; index++)
        if (calls[index].result) say("%s returned: %d\n", calls[index].name, calls[index].result);
    say("%d calls\n", COUNT);
    for (int index = 0; index < 2; index++) semctl(semaphores[index], 0, IPC_RMID);
    _exit(0);
}
