/* Starts a program in a way of its own, where the library has to be careful.
 *
 * filter ACTION CALL PROGRAM   inside a seccomp filter that kills (kill), refuses (errno) or asks
 *                              a supervisor (ask) for one system call, by number; with 1000 it
 *                              allows all; SAVED_PRELOAD becomes LD_PRELOAD then
 * 5                            fails to start itself with bad addresses of an environment, and ends with 5
 * stack HOW PROGRAM            from a thread with the smallest stack (spawn, fork-HOW, vfork-HOW) or
 *                              from a child on a stack of 4 KiB (clone-HOW); HOW is one of execv,
 *                              execl, execvp, execve
 * folder PROGRAM               by posix_spawn in the folder d1, by a relative path
 * lock PROGRAM                 with a lock on the program's file, which must be kept, by this process and by children
 * variables COUNT PROGRAM      with this many environment variables
 * dispatch PROGRAM             where system calls from outside of libc raise a signal
 * full HOW PROGRAM             without a free descriptor, in a child that has allocated (used) or not (new)
 * call FOLDER PROGRAM          by the system call through libc's `syscall`: at once, by descriptor, and after
 *                              a change of the root to FOLDER, where the file is `program`
 *
 * The program gets the argument 5. Prints how it ended, and how often a supervisor was asked. */
#include "own.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
extern char **environ;

static const char *how, *program;
static char *arguments[] = { "program", "5", 0 };

static void report(int status) {
    if (WIFEXITED(status)) say("exited with %d\n", WEXITSTATUS(status));
    else say("killed by %d\n", WTERMSIG(status));
}
static void start(const char *by) {
    if (!strcmp(by, "execv")) execv(program, arguments);
    if (!strcmp(by, "execl")) execl(program, "program", "5", (char *)0);
    if (!strcmp(by, "execvp")) execvp(program, arguments);
    if (!strcmp(by, "execve")) execve(program, arguments, environ);
    _exit(99);
}
static void wait_for(pid_t pid) {
    int status;
    must(waitpid(pid, &status, __WALL) == pid, "the child ends");
    report(status);
}
static void spawn(posix_spawn_file_actions_t *actions) {
    pid_t pid;
    must(!posix_spawn(&pid, program, actions, 0, arguments, environ), "posix_spawn");
    wait_for(pid);
}

static int install(unsigned action, long call) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog whole = { sizeof filter / sizeof *filter, filter };
    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new rights");
    int asks = action == SECCOMP_RET_USER_NOTIF;
    int result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, asks ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0, &whole);
    must(result >= 0, "filter");
    return result;
}
/* Answers each notice with "go on" until nobody has the filter any more. Returns their number. */
static unsigned supervise(int listener) {
    static _Alignas(8) char memory[1024];
    struct seccomp_notif *notice = (void *)memory;
    unsigned count = 0;
    struct pollfd watched = { listener, POLLIN, 0 };
    for (;;) {
        must(poll(&watched, 1, -1) == 1, "poll");
        if (!(watched.revents & POLLIN)) return count;
        memset(memory, 0, sizeof memory);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, notice)) continue;
        count++;
        struct seccomp_notif_resp answer = { notice->id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE };
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}
static int filtered(const char *action, long call) {
    unsigned actions = !strcmp(action, "kill") ? SECCOMP_RET_KILL_PROCESS
        : !strcmp(action, "errno") ? SECCOMP_RET_ERRNO | ENOSYS : SECCOMP_RET_USER_NOTIF;
    if (!strcmp(action, "ask")) {
        /* The listener stays here, and the filter is the child's. */
        int listener_from[2], go_on[2];
        must(!pipe(listener_from) && !pipe(go_on), "pipe");
        pid_t pid = fork();
        if (!pid) {
            int listener = install(actions, call);
            must(write(listener_from[1], &listener, sizeof listener) == sizeof listener, "write");
            char go;
            must(read(go_on[0], &go, 1) == 1, "read");
            close(listener);
            execv(program, arguments);
            _exit(98);
        }
        int number, status;
        must(read(listener_from[0], &number, sizeof number) == sizeof number, "the listener's number");
        int process = syscall(SYS_pidfd_open, pid, 0);
        int listener = syscall(SYS_pidfd_getfd, process, number, 0);
        must(listener >= 0, "pidfd_getfd");
        must(write(go_on[1], "", 1) == 1, "write");
        unsigned count = supervise(listener);
        must(waitpid(pid, &status, 0) == pid, "the child ends");
        report(status);
        say("asked %u times\n", count);
        return 0;
    }
    pid_t pid = fork();
    if (!pid) {
        free(malloc(10));
        install(actions, call);
        const char *saved = getenv("SAVED_PRELOAD");
        if (saved) setenv("LD_PRELOAD", saved, 1);
        execv(program, arguments);
        _exit(98);
    }
    wait_for(pid);
    return 0;
}

static int cloned(void *by) { start(by); return 97; }
static void on_small_stack(void) {
    if (!strcmp(how, "spawn")) return spawn(0);
    pid_t pid = !strncmp(how, "vfork-", 6) ? vfork() : fork();
    if (!pid) start(strchr(how, '-') + 1);
    wait_for(pid);
}
static void *thread(void *v) { on_small_stack(); return v; }
static void small(void) {
    if (!strncmp(how, "clone-", 6)) {
        char *memory = mmap(0, 12288, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(memory != MAP_FAILED && !mprotect(memory + 4096, 4096, PROT_READ | PROT_WRITE), "a stack between guards");
        return wait_for(clone(cloned, memory + 8192, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)(how + 6)));
    }
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    must(!pthread_attr_setstacksize(&attr, 16384), "the smallest stack");
    pthread_t id;
    must(!pthread_create(&id, &attr, thread, 0), "pthread_create");
    pthread_join(id, 0);
}

/* Syscall User Dispatch as Wine has it: system calls from outside of libc raise SIGSYS. */
static volatile char selector;
static volatile int traps;
static void trapped(int signal) { (void)signal; traps++; }
NOINLINE static void deep(int depth) {
    volatile char frame[12288];
    frame[0] = depth;
    free(malloc(depth + 1));
    if (depth) deep(depth - 1);
    frame[1] = depth;
}
static void dispatched(void) {
    unsigned long from = 0, to = 0, address = (unsigned long)(void *)getppid;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= address && address < to) break;
    fclose(maps);
    signal(SIGSYS, trapped);
    must(!prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, from, to - from, &selector), "dispatch");
    selector = 1;
    deep(40);
    selector = 0;
    say("%d traps\n", traps);
    spawn(0);
}

/* Says whether this process, by its number, still has its lock. */
static void look_at_lock(int file, pid_t own) {
    pid_t pid = fork();
    if (!pid) {
        struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
        must(!fcntl(file, F_GETLK, &lock), "look");
        say(lock.l_type != F_UNLCK && lock.l_pid == own ? "locked\n" : "not locked\n");
        _exit(0);
    }
    wait_for(pid);
}
static void locked(void) {
    int file = open(program, O_RDONLY);
    struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
    must(file >= 0 && !fcntl(file, F_SETLK, &lock), "lock");
    spawn(0);
    look_at_lock(file, getpid());
    pid_t pid = vfork();
    if (!pid) start("execv");
    wait_for(pid);
    look_at_lock(file, getpid());
    char *too_long = calloc(1, 4 << 20);
    memset(too_long, 'x', (4 << 20) - 1);
    must(execv(program, (char *[]){ too_long, 0 }) < 0, "too long");
    look_at_lock(file, getpid());
}
/* With locks of a child that has allocated nothing, of one that has, and of this process. */
static void locked_in_children(void) {
    for (int allocates = 0; allocates < 2; allocates++) {
        pid_t pid = fork();
        if (!pid) {
            if (allocates) free(malloc(78));
            locked();
            _exit(0);
        }
        wait_for(pid);
    }
    locked();
}

static void called(const char *folder) {
    for (int which = 0; which < 3; which++) {
        pid_t pid = which == 1 ? vfork() : fork();
        if (!pid && which == 0) syscall(SYS_execve, program, arguments, environ);
        if (!pid && which == 1) syscall(SYS_execveat, open(program, O_PATH | O_CLOEXEC), "", arguments, environ, AT_EMPTY_PATH);
        if (!pid && which == 2 && !chroot(folder)) syscall(SYS_execve, "/program", arguments, environ);
        if (!pid) _exit(96);
        wait_for(pid);
    }
}

int main(int argc, char **argv) {
    if (argc == 2) {
        char **const lists[] = { (char **)1, (char **)-8l, (char *[]){ (char *)8, 0 } };
        for (int i = 0; i < 3; i++) must(execve("/proc/self/exe", arguments, lists[i]) == -1 && errno == EFAULT, "a bad address");
        return atoi(argv[1]);
    }
    must(argc > 2, "arguments");
    free(malloc(77));
    program = argv[argc - 1];
    how = argv[2];
    if (!strcmp(argv[1], "filter")) return filtered(argv[2], atol(argv[3]));
    if (!strcmp(argv[1], "stack")) small();
    if (!strcmp(argv[1], "lock")) locked_in_children();
    if (!strcmp(argv[1], "call")) called(argv[2]);
    if (!strcmp(argv[1], "dispatch")) dispatched();
    if (!strcmp(argv[1], "folder")) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addchdir_np(&actions, "d1");
        spawn(&actions);
    }
    if (!strcmp(argv[1], "variables")) {
        for (int i = 0; i < atoi(argv[2]); i++) {
            char name[32];
            snprintf(name, sizeof name, "VARIABLE_%d", i);
            setenv(name, "value", 1);
        }
        spawn(0);
        pid_t pid = vfork();
        if (!pid) start("execv");
        wait_for(pid);
    }
    if (!strcmp(argv[1], "full")) {
        pid_t pid = fork();
        if (!pid) {
            if (!strcmp(how, "used")) free(malloc(78));
            while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) ;
            start("execv");
        }
        wait_for(pid);
    }
    return 0;
}
