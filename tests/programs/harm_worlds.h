/* Steps of harm_steps that are whole small worlds: filters around a program, small stacks, threads that
 * come and go, mounts, record locks, timeouts of sockets, and unusual ways to start a program. */
#ifndef HARM_WORLDS_H
#define HARM_WORLDS_H
#include "harm_log.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include "processor.h"

extern char **environ;
static const char *plugin_folder;
static long wait_for(pid_t pid);

/* Small stacks. */
struct small { long how, ended; const char *path; };
static char *const true_arguments[] = { "true", 0 };
static const char *const small_paths[] = { "/bin/true", "/nonexistent/program", "/bin/false" };
static int on_4_kilobytes(void *given) {
    execve(((struct small *)given)->path, true_arguments, environ);
    _exit(127);
}
static void *on_small_stack(void *given) {
    struct small *small = given;
    pid_t pid = 0;
    char *block = malloc(100), *moved = realloc(block, 5000);
    free(moved ? moved : block);
    free(calloc(3, 40));
    switch (small->how) {
        case 1: if (posix_spawn(&pid, small->path, 0, 0, true_arguments, environ)) pid = 0; break;
        case 2: if (!(pid = fork())) { execv(small->path, true_arguments); _exit(127); } break;
        case 3: if (!(pid = vfork())) { execl(small->path, "true", (char *)0); _exit(127); } break;
        case 4: if (!(pid = fork())) { execvp(small->path, true_arguments); _exit(127); } break;
        case 5: {
            char *stack = mmap(0, 12288, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (stack == MAP_FAILED || mprotect(stack + 4096, 4096, PROT_READ | PROT_WRITE)) break;
            pid = clone(on_4_kilobytes, stack + 8192, CLONE_VM | CLONE_VFORK | SIGCHLD, small);
            if (pid > 0) small->ended = wait_for(pid);
            munmap(stack, 12288);
            return 0;
        }
        case 6: if (!(pid = vfork())) { raw_call(SYS_execve, (long)small->path, (long)true_arguments, (long)environ); _exit(127); } break;
    }
    small->ended = pid > 0 ? wait_for(pid) : pid;
    return 0;
}
static long on_small(long how, long which) {
    struct small small = { how, -1, small_paths[which % 3] };
    pthread_attr_t attributes;
    pthread_t id;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    int error = pthread_create(&id, &attributes, on_small_stack, &small);
    if (!error) pthread_join(id, 0);
    pthread_attr_destroy(&attributes);
    return error ? -error : small.ended;
}

/* Threads that come and go. Returns how many did not, or -1 if they took much memory. */
static void *comes_and_goes(void *given) {
    free(malloc((size_t)given));
    return 0;
}
static long resident_kilobytes(void) {
    char text[4096];
    int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[got < 0 ? 0 : got] = 0;
    const char *line = strstr(text, "VmRSS:");
    return line ? atol(line + 6) : 0;
}
static long churn(long count) {
    long before = resident_kilobytes(), bad = 0;
    for (long i = 0; i < count; i++) {
        pthread_t id;
        if (pthread_create(&id, 0, comes_and_goes, (void *)(i % 500))) bad++; else pthread_join(id, 0);
    }
    return resident_kilobytes() - before > 96 << 10 ? -1 : bad;
}

/* Files. */
static int copy_of_true(const char *to) {
    char bytes[8192];
    int from = open("/bin/true", O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    ssize_t got = -1;
    while (from >= 0 && out >= 0 && (got = read(from, bytes, sizeof bytes)) > 0) if (write(out, bytes, got) != got) { got = -1; break; }
    if (from >= 0) close(from);
    if (out >= 0) close(out);
    return got;
}
static long run_true(const char *path) {
    pid_t pid = fork();
    if (!pid) { execv(path, true_arguments); _exit(127); }
    return wait_for(pid);
}
static int write_file(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    int bad = file < 0 || write(file, text, strlen(text)) < 0;
    if (file >= 0) close(file);
    return bad;
}
/* Makes this process root of a user namespace. */
static int become_root(void) {
    char line[32];
    unsigned user = geteuid(), group = getegid();
    if (unshare(CLONE_NEWUSER)) return -1;
    write_file("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "0 %u 1", user);
    if (write_file("/proc/self/uid_map", line)) return -1;
    snprintf(line, sizeof line, "0 %u 1", group);
    return write_file("/proc/self/gid_map", line);
}
/* A file system of a child's own, which can be unmounted when the program in it has ended. */
static long mounts(long kind) {
    pid_t pid = fork();
    if (pid) return wait_for(pid);
    if ((kind & 1 && become_root()) || unshare(CLONE_NEWNS)) _exit(50);
    if (mount("", "/", 0, MS_REC | MS_PRIVATE, 0) || mount("t", "/mnt", "tmpfs", 0, 0)) _exit(51);
    if (copy_of_true("/mnt/t")) _exit(52);
    if (kind & 2) umount2("/proc", MNT_DETACH);
    long ended = run_true("/mnt/t");
    int tries = 0;
    while (umount("/mnt") && tries++ < 1000) usleep(10000);
    _exit(tries >= 1000 ? 53 : 10 + (ended & 31));
}
/* A lock on a program's file, which starts of it must keep. */
static long locks(long kind) {
    char path[512];
    struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
    pid_t pid = -1, own = getpid();
    snprintf(path, sizeof path, "%s/locked.%d", plugin_folder, (int)own);
    if (copy_of_true(path)) return -1;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    long value = fcntl(file, F_SETLK, &lock) ? -2 : 0;
    switch (kind) {
        case 0: if (!posix_spawn(&pid, path, 0, 0, true_arguments, environ)) value += wait_for(pid); break;
        case 1: value += run_true(path); break;
        case 2: if (!(pid = vfork())) { execlp(path, "true", (char *)0); _exit(127); } value += wait_for(pid); break;
        case 3: chmod(path, 0644); execv(path, true_arguments); break;
        default: if (!(pid = vfork())) { fexecve(file, true_arguments, environ); _exit(127); } value += wait_for(pid);
    }
    if (!(pid = fork())) {
        lock.l_type = F_WRLCK;
        _exit(fcntl(file, F_GETLK, &lock) ? 1 : lock.l_type == F_UNLCK ? 2 : lock.l_pid == own ? 40 : 3);
    }
    value += wait_for(pid);
    if (file >= 0) close(file);
    unlink(path);
    return value;
}
/* Waits that end by themselves. Returns errno. */
static long times_out(long kind) {
    struct timeval limit = { 0, 3000 };
    struct timespec soon = { 0, 3000000 };
    char bytes[4096] = "";
    int pair[2] = { -1, -1 };
    if (socketpair(AF_UNIX, kind & 1 ? SOCK_DGRAM : SOCK_STREAM, 0, pair)) return errno;
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    struct pollfd watched = { pair[0], POLLIN, 0 };
    long value;
    errno = 0;
    switch (kind >> 1) {
        case 0: value = recv(pair[0], bytes, 10, 0); break;
        case 1: do value = send(pair[0], bytes, sizeof bytes, 0); while (value > 0); break;
        case 2: value = ppoll(&watched, 1, &soon, 0); break;
        default: value = read(pair[0], bytes, 10);
    }
    value = value * 1000 - errno;
    close(pair[0]);
    close(pair[1]);
    return value;
}

/* Filters around a program that is started. */
static const int guarded_calls[] = { SYS_socket, SYS_connect, SYS_sendto, SYS_recvmsg, RAW_POLL, SYS_getpid, SYS_gettid, SYS_prctl, SYS_mremap, SYS_getrusage,
                                     SYS_process_vm_readv, SYS_readlinkat, SYS_getsockopt, SYS_memfd_create, SYS_clock_gettime, SYS_nanosleep, SYS_tgkill, SYS_prlimit64 };
enum { GUARDED_CALLS = sizeof guarded_calls / sizeof *guarded_calls };
static int guard(unsigned action, int call, int by_syscall) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog whole = { sizeof rules / sizeof *rules, rules };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (action == SECCOMP_RET_USER_NOTIF) return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &whole);
    return by_syscall ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &whole) : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole);
}
/* Answers each question with "go on" until nobody has the filter any more. Returns their number. */
static long supervise(int listener) {
    static _Alignas(8) char memory[1024];
    struct seccomp_notif *notice = (void *)memory;
    struct pollfd watched = { listener, POLLIN, 0 };
    long count = 0;
    for (;;) {
        if (poll(&watched, 1, -1) < 0 && errno != EINTR) return -1;
        if (!(watched.revents & POLLIN)) return count;
        memset(memory, 0, sizeof memory);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, notice)) continue;
        count++;
        struct seccomp_notif_resp answer = { notice->id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE };
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}
/* Starts a program inside a filter for one call: killed, refused, trapped, or asked for. */
static void guarded(long kind, long call, char **arguments) {
    static const unsigned actions[] = { SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ERRNO | ENOSYS, SECCOMP_RET_TRAP, SECCOMP_RET_USER_NOTIF, SECCOMP_RET_ERRNO | EPERM };
    unsigned action = actions[kind % 5];
    int numbers[2] = { -1, -1 }, go_on[2] = { -1, -1 }, asks = action == SECCOMP_RET_USER_NOTIF, number = -1, listener = -1;
    if (asks && (pipe(numbers) || pipe(go_on))) return;
    pid_t pid = fork();
    if (!pid) {
        int made = guard(action, guarded_calls[call % GUARDED_CALLS], call & 1);
        char byte;
        if (asks && (write(numbers[1], &made, sizeof made) != sizeof made || read(go_on[0], &byte, 1) != 1)) _exit(96);
        if (asks) for (int i = 0; i < 2; i++) close(numbers[i]), close(go_on[i]);
        if (made < 0) _exit(97);
        if (asks) close(made);
        if (kind >= 5) raw_call(SYS_execve, (long)arguments[0], (long)arguments, (long)environ);
        else execve(arguments[0], arguments, environ);
        _exit(98);
    }
    long count = -1;
    if (asks) {
        if (read(numbers[0], &number, sizeof number) == sizeof number && number >= 0) {
            int process = syscall(SYS_pidfd_open, pid, 0);
            listener = syscall(SYS_pidfd_getfd, process, number, 0);
            close(process);
        }
        if (write(go_on[1], "", 1) != 1) return;
        for (int i = 0; i < 2; i++) close(numbers[i]), close(go_on[i]);
        if (listener >= 0) count = supervise(listener), close(listener);
    }
    long ended = wait_for(pid);
    result(me->lane, "guarded", 7, ended, 0);
    result(me->lane, "asked", 5, count, 0);
}

/* A program in a line of a shell. */
static void shell_line(char *line, size_t size, char **arguments) {
    size_t at = 0;
    for (char **word = arguments; *word && at + strlen(*word) + 4 < size; word++) at += snprintf(line + at, size - at, "'%s' ", *word);
}
#endif
