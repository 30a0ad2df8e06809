/* Writes to the log what a process can observe of its own state: descriptors, mappings of files,
 * signals, timers, limits, names, rights. */
#ifndef HARM_LOOK_H
#define HARM_LOOK_H
#include "harm_log.h"
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

extern char **environ;
static char look_buffer[128 << 10];

/* Reads a file of /proc as text, without stdio. */
static char *look_file(const char *path) {
    size_t size = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    for (ssize_t got; size < sizeof look_buffer - 1 && (got = read(file, look_buffer + size, sizeof look_buffer - 1 - size)) > 0;) size += got;
    close(file);
    look_buffer[size] = 0;
    return look_buffer;
}
static void look_descriptors(struct lane *lane) {
    char names[4096], target[256], path[64];
    int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) { result(lane, "fds", 3, folder, errno); return; }
    for (long size; (size = syscall(SYS_getdents64, folder, names, sizeof names)) > 0;)
        for (long at = 0; at < size;) {
            struct dirent64 *entry = (struct dirent64 *)(names + at);
            at += entry->d_reclen;
            if (entry->d_name[0] == '.') continue;
            int number = atoi(entry->d_name);
            snprintf(path, sizeof path, "/proc/self/fd/%d", number);
            ssize_t length = readlink(path, target, sizeof target - 1);
            target[length < 0 ? 0 : length] = 0;
            char *end = strchr(target, '['); /* pipe:[1234] */
            if (end && target[0] != '/') *end = 0;
            if (strstr(target, "/proc/")) strcpy(target, "proc");
            put(lane, "fd ");
            put_number(lane, number, 10);
            put(lane, fcntl(number, F_GETFD) & FD_CLOEXEC ? " cloexec " : " ");
            put_number(lane, fcntl(number, F_GETFL) & ~O_CLOEXEC, 16);
            put(lane, " ");
            put(lane, target);
            put(lane, "\n");
        }
    close(folder);
}
/* A mapping of a file. */
struct mapping { unsigned long start, end, offset; char rights[8], *path; };
static void look_mapping(struct lane *lane, const struct mapping *one) {
    if (!one->path) return;
    put(lane, "map ");
    put(lane, one->path);
    put(lane, " ");
    put(lane, one->rights);
    put(lane, " ");
    put_number(lane, one->end - one->start, 16);
    put(lane, " ");
    put_number(lane, one->offset, 16);
    put(lane, "\n");
}
/* Prints the mappings of files, without addresses, and without those of the library and of its
 * shared memory, which is anonymous ("/dev/zero") in a child whose limit leaves no private memory.
 * Code that is mapped by adjacent mappings is one: the kernel does not join pages that hold a hook,
 * which are copies, with the others. The runner sorts these lines. */
static void look_mappings(struct lane *lane) {
    char *text = look_file("/proc/self/maps");
    if (!text) { put(lane, "no maps\n"); return; }
    struct mapping last = { 0 };
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(0, "\n", &save)) {
        struct mapping one = { 0 };
        int name = 0;
        if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %n", &one.start, &one.end, one.rights, &one.offset, &name) < 4 || !name) continue;
        char *path = line + name;
        if (path[0] != '/' || strncmp(path, "/memfd:", 7) == 0 || strcmp(path, "/dev/zero (deleted)") == 0) continue;
        one.path = strrchr(path, '/') + 1;
        if (strncmp(one.path, "libheaptape", 11) == 0 || strncmp(one.path, "libharm_planted", 15) == 0) continue;
        if (last.path && strcmp(last.path, one.path) == 0 && strcmp(one.rights, "r-xp") == 0 && strcmp(last.rights, "r-xp") == 0
            && last.end == one.start && last.offset + (last.end - last.start) == one.offset) {
            last.end = one.end;
            continue;
        }
        look_mapping(lane, &last);
        last = one;
    }
    look_mapping(lane, &last);
}
static void look_status(struct lane *lane) {
    static const char *const wanted[] = { "Name:", "Umask:", "Uid:", "Gid:", "Groups:", "Threads:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:",
                                          "SigCgt:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:", "Cpus_allowed:" };
    char *text = 0;
    /* The kernel may count a thread for a short time after the join. */
    for (int tries = 0; tries < 200; tries++) {
        text = look_file("/proc/self/status");
        char *threads = text ? strstr(text, "Threads:") : 0;
        if (!threads || atoi(threads + 8) == 1) break;
        struct timespec nap = { 0, 1000000 };
        nanosleep(&nap, 0);
    }
    if (!text) { put(lane, "no status\n"); return; }
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(0, "\n", &save))
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            if (strncmp(line, wanted[i], strlen(wanted[i])) == 0) { put(lane, line); put(lane, "\n"); }
}
/* Reads a handler from the kernel, since libc hides its two signals. `own` is the handler of the
 * program, or null. */
static void look_signals(struct lane *lane, const void *const *own, int own_count) {
    for (int signal = 1; signal <= 64; signal++) {
        struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action;
        if (syscall(SYS_rt_sigaction, signal, 0, &action, 8) != 0) continue;
        if (!action.handler && !action.flags && !action.mask) continue;
        int index = 0;
        while (index < own_count && own[index] != action.handler) index++;
        put(lane, "signal ");
        put_number(lane, signal, 10);
        put(lane, action.handler == (void *)SIG_DFL ? " default" : action.handler == (void *)SIG_IGN ? " ignored" : index < own_count ? " own " : " other ");
        put_number(lane, index, 10);
        put(lane, " flags ");
        put_number(lane, action.flags, 16);
        put(lane, " mask ");
        put_number(lane, action.mask, 16);
        put(lane, "\n");
    }
    unsigned long mask = 0;
    syscall(SYS_rt_sigprocmask, 0, 0, &mask, 8);
    put(lane, "mask ");
    put_number(lane, mask, 16);
    stack_t stack = { 0 };
    sigaltstack(0, &stack);
    put(lane, " altstack ");
    put_number(lane, stack.ss_flags, 10);
    put(lane, " ");
    put_number(lane, stack.ss_flags & SS_DISABLE ? 0 : stack.ss_size, 10);
    put(lane, "\n");
}
static void look_rest(struct lane *lane) {
    for (int kind = 0; kind < 16; kind++) {
        struct rlimit limit = { 0, 0 };
        getrlimit(kind, &limit);
        put(lane, kind ? " " : "limits ");
        put_number(lane, limit.rlim_cur, 16);
        put(lane, "/");
        put_number(lane, limit.rlim_max, 16);
    }
    put(lane, "\ntimers");
    for (int kind = 0; kind < 3; kind++) {
        struct itimerval timer = { 0 };
        getitimer(kind, &timer);
        put(lane, timer.it_value.tv_sec || timer.it_value.tv_usec ? " armed" : " none");
    }
    char *timers = look_file("/proc/self/timers");
    int count = 0;
    for (char *at = timers; at && (at = strstr(at, "ID:")); at += 3) count++;
    put(lane, " posix ");
    put_number(lane, count, 10);
    static const int questions[] = { PR_GET_DUMPABLE, PR_GET_KEEPCAPS, PR_GET_SECUREBITS, PR_GET_TIMERSLACK, PR_GET_NO_NEW_PRIVS, PR_GET_THP_DISABLE };
    put(lane, "\nprctl");
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) { put(lane, " "); put_number(lane, prctl(questions[i], 0, 0, 0, 0), 10); }
    static const int asked[] = { PR_GET_TSC, PR_GET_PDEATHSIG, PR_GET_CHILD_SUBREAPER };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        int answer = -1;
        prctl(asked[i], &answer, 0, 0, 0);
        put(lane, " ");
        put_number(lane, answer, 10);
    }
    char folder[256] = "";
    put(lane, "\nfolder ");
    put(lane, syscall(SYS_getcwd, folder, sizeof folder) > 0 ? folder : "?");
    put(lane, " nice ");
    put_number(lane, getpriority(PRIO_PROCESS, 0), 10);
    put(lane, " policy ");
    put_number(lane, sched_getscheduler(0), 10);
    put(lane, "\nenvironment");
    int many = 0;
    for (char **variable = environ; variable && *variable; variable++) {
        if (strncmp(*variable, "LD_PRELOAD=", 11) == 0 || strncmp(*variable, "HEAPTAPE", 8) == 0) continue;
        if (strncmp(*variable, "MANY_", 5) == 0) { many++; continue; }
        put(lane, " ");
        put(lane, *variable);
    }
    put(lane, " and many ");
    put_number(lane, many, 10);
    put(lane, "\n");
}
static void look(struct lane *lane, const void *const *own, int own_count) {
    put(lane, "look {\n");
    look_descriptors(lane);
    look_mappings(lane);
    look_status(lane);
    look_signals(lane, own, own_count);
    look_rest(lane);
    put(lane, "}\n");
}
#endif
