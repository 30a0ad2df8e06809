/* Executes steps: harm_steps LOG MODE PLUGINS STEPS…, each `name:a:b:c`, or `name:a{` with
 * further steps up to `}`. tests/src/harm makes the steps from a seed, and compares the logs of
 * a bare and a recorded run. Nothing that depends on time, addresses or process ids is logged.
 * With SAFE the program is linked with signal_safe_allocator, and signals may interrupt and
 * leave the allocator. */
#include "harm_log.h"
#include "harm_look.h"
#include <dlfcn.h>
#include <fenv.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <ucontext.h>
#include "processor.h"

/* musl has neither coroutines nor these functions. */
#ifndef __GLIBC__
#define CLOSE_RANGE_CLOEXEC 4
#define close_range(from, to, flags) syscall(SYS_close_range, from, to, flags)
#define pvalloc(size) valloc(size)
#define feenableexcept(flags) feraiseexcept(0 & (flags))
#endif

struct step { const char *op; size_t size; long a, b, c; int end; };
#define MOST_STEPS 1024
static struct step steps[MOST_STEPS];
static int step_count;
static char **words; /* the arguments; each is one step */
enum { FIRST_STEP = 4 };

struct fiber;
/* The state of a thread or coroutine. */
struct place {
    struct lane *lane;
    struct fiber *fiber;
    int is_thread, is_shut, number, from, to, signals;
    sigjmp_buf *jump, *fault;
    void *blocks[8];
    size_t sizes[8];
    void *plugins[4];
};
static struct place first;
static __thread struct place *me = &first;
static const char *plugin_folder;
#include "harm_worlds.h"
static void run(int from, int to);
static int is(const struct step *step, const char *name) { return strlen(name) == step->size && memcmp(step->op, name, step->size) == 0; }

/* Blocks. Each is filled after its allocation, and checked before its free. */
#define COUNT(field) atomic_fetch_add(&shared->field, 1)
/* A forked child is recorded from its first call of the allocator on. */
static _Atomic int is_silent_child;
static void count_allocation(void) {
    COUNT(allocs);
    if (is_silent_child && atomic_exchange(&is_silent_child, 0)) COUNT(processes);
}
static size_t ends_filled(size_t size) { return size < 256 ? size : 256; }
static long set_block(int slot, void *block, size_t size) {
    if (!block) return 0;
    count_allocation();
    me->blocks[slot] = block;
    me->sizes[slot] = size;
    memset(block, 0x50 + slot, ends_filled(size));
    if (size) ((char *)block)[size - 1] = 0x50 + slot;
    return 1;
}
static int is_intact(int slot) {
    const char *block = me->blocks[slot];
    for (size_t i = 0; block && i < ends_filled(me->sizes[slot]); i++) if (block[i] != 0x50 + slot) return 0;
    return !block || !me->sizes[slot] || block[me->sizes[slot] - 1] == 0x50 + slot;
}
static void free_block(int slot) {
    if (!is_intact(slot)) put(me->lane, "a block has changed\n");
    if (me->blocks[slot]) COUNT(frees);
    free(me->blocks[slot]);
    me->blocks[slot] = 0;
}
static void pairs(long count, size_t size) {
    for (long i = 0; i < count; i++) {
        char *block = malloc(size + i % 64);
        if (!block) continue;
        count_allocation();
        block[size / 2] = (char)i;
        if (i % 7 == 0) { char *moved = realloc(block, size * 2 + 64); if (moved) { COUNT(resizes); block = moved; } }
        free(block);
        COUNT(frees);
    }
}
NOINLINE static void deep(long depth, long count) {
    volatile char room[48];
    room[0] = 0;
    (void)room[0];
    if (depth > 0) deep(depth - 1, count); else pairs(count, 40);
    KEEP_FRAME();
}
NOINLINE static void branch(long left);
NOINLINE static void one(long left) { branch(left); KEEP_FRAME(); }
NOINLINE static void other(long left) { branch(left); KEEP_FRAME(); }
NOINLINE static void branch(long left) {
    if (!left) pairs(1, 24); else { one(left - 1); other(left - 1); }
    KEEP_FRAME();
}

/* Handlers. */
static volatile sig_atomic_t alarms, is_storm_child, storm_forks, wanted_forks;
static volatile int alarm_kind;
static volatile pid_t storm_child;
static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    struct place *mine = me;
    run(mine->from, mine->to);
    if (mine->jump) siglongjmp(*mine->jump, 1);
}
static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)info, (void)context;
    if (!me->fault) { struct sigaction action = { .sa_handler = SIG_DFL }; sigaction(signal, &action, 0); return; }
    siglongjmp(*me->fault, 1);
}
static void on_alarm(int signal) {
    (void)signal;
    int kept = errno;
    alarms = alarms + 1;
    if (alarm_kind == 1) free(malloc(100));
    if (alarm_kind == 2) siglongjmp(*me->jump, 1);
    if (alarm_kind == 3 && storm_forks < wanted_forks && !storm_child && !is_storm_child) {
        pid_t pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (!pid) is_storm_child = 1; else storm_child = pid;
    }
    errno = kept;
}
static const void *const handlers[] = { on_signal, on_fault, on_alarm };
static void set_alarm(long microseconds) {
    struct itimerval often = { { 0, microseconds }, { 0, microseconds } };
    setitimer(ITIMER_REAL, &often, 0);
}
static void handle_alarms(int kind) {
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, 0);
    alarm_kind = kind;
    alarms = 0;
}
static long wait_for(pid_t pid) {
    int status = 0;
    pid_t done;
    while ((done = waitpid(pid, &status, 0)) < 0 && errno == EINTR) ;
    return done < 0 ? -errno : WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
/* Leaves the code that a timer interrupts by a jump. */
static void disturbed(long jumps) {
    sigjmp_buf start;
    volatile long step = 0;
    me->jump = &start;
    handle_alarms(2);
    if (sigsetjmp(start, 1) == 0) set_alarm(150);
    while (alarms < jumps) { step = step + 1; deep(step % 30, 1); }
    set_alarm(0);
    me->jump = 0;
    pairs(300, 70);
}
/* A handler forks by a system call inside the code that it interrupts. The child continues there. */
static long forks_in_handler(long forks) {
    long bad = 0;
    handle_alarms(3);
    storm_forks = 0;
    wanted_forks = forks;
    set_alarm(300);
    while (storm_forks < forks) {
        pairs(3, 30);
        if (is_storm_child) { pairs(50, 90); _exit(11); }
        if (!storm_child) continue;
        if (wait_for(storm_child) != 11) bad++;
        storm_forks = storm_forks + 1;
        storm_child = 0;
    }
    set_alarm(0);
    return bad;
}

/* Coroutines. Each runs the same steps, and yields after each step. */
#ifdef __GLIBC__
struct fiber { ucontext_t context, *back; struct place place; char *stack; int from, to, is_over; };
#define FIBER_STACK (256 << 10)
static void fiber_main(unsigned high, unsigned low) {
    struct fiber *fiber = (struct fiber *)((uintptr_t)high << 32 | low);
    run(fiber->from, fiber->to);
    fiber->is_over = 1;
    swapcontext(&fiber->context, fiber->back);
}
static void coroutines(const struct step *step, int from) {
    struct fiber fibers[3];
    ucontext_t back;
    struct place *mine = me;
    const int count = step->a;
    volatile int left = count;
    memset(fibers, 0, sizeof fibers);
    for (volatile int i = 0; i < count; i++) {
        struct fiber *fiber = &fibers[i];
        fiber->stack = mmap(0, FIBER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fiber->stack == MAP_FAILED) { put(me->lane, "no stack for a coroutine\n"); fiber->is_over = 1; left--; continue; }
        mprotect(fiber->stack, 4096, PROT_NONE);
        getcontext(&fiber->context);
        fiber->context.uc_stack.ss_sp = fiber->stack + 4096;
        fiber->context.uc_stack.ss_size = FIBER_STACK - 4096;
        fiber->back = &back;
        fiber->place = (struct place){ .lane = mine->lane, .is_thread = mine->is_thread, .is_shut = mine->is_shut, .fiber = fiber };
        fiber->from = from;
        fiber->to = step->end;
        makecontext(&fiber->context, (void (*)(void))fiber_main, 2, (unsigned)((uintptr_t)fiber >> 32), (unsigned)(uintptr_t)fiber);
    }
    while (left) for (int i = 0; i < count; i++) {
        if (fibers[i].is_over) continue;
        me = &fibers[i].place;
        swapcontext(&back, &fibers[i].context);
        me = mine;
        left -= fibers[i].is_over;
    }
    for (int i = 0; i < count; i++) if (fibers[i].stack != MAP_FAILED) munmap(fibers[i].stack, FIBER_STACK);
}
static void yield(void) { if (me->fiber) swapcontext(&me->fiber->context, me->fiber->back); }
#else
static void coroutines(const struct step *step, int from) { (void)step, (void)from, put(me->lane, "no coroutines\n"); }
static void yield(void) {}
#endif

/* Threads. */
struct worker { struct lane *lane; int from, to, number; pthread_t id; int error; };
static void *work(void *given) {
    struct worker *worker = given;
    struct place place = { .lane = worker->lane, .is_thread = 1, .number = worker->number };
    me = &place;
    run(worker->from, worker->to);
    for (int i = 0; i < 8; i++) free_block(i);
    return 0;
}
static void threads(const struct step *step, int from) {
    struct worker workers[8] = { 0 };
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (step->b) pthread_attr_setstacksize(&attributes, step->b << 10);
    for (int i = 0; i < step->a; i++) {
        workers[i] = (struct worker){ .lane = new_lane(), .from = from, .to = step->end, .number = i };
        workers[i].error = pthread_create(&workers[i].id, &attributes, work, &workers[i]);
    }
    for (int i = 0; i < step->a; i++) {
        if (!workers[i].error) pthread_join(workers[i].id, 0);
        result(me->lane, "create", 6, workers[i].error, 0);
        append_lane(me->lane, "thread", workers[i].lane);
    }
    pthread_attr_destroy(&attributes);
}
static void free_kept(void *kept) { free(kept); }
struct cancelled { pthread_t id; long kind; _Atomic pid_t tid; };
static void *is_cancelled(void *thread) {
    struct cancelled *self = thread;
    long kind = self->kind;
    self->tid = gettid();
    void *volatile kept = malloc(333);
    pthread_cleanup_push(free_kept, kept);
    if (kind) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    for (;;) { if (kind) pairs(10, 50); else { free(malloc(50)); usleep(1000); } }
    pthread_cleanup_pop(1);
    return 0;
}
/* Where the user's processes have as many signals pending as they may, the kernel refuses the one that
 * cancels a thread. That waits for it all the same, and pthread_cancel sends it only once. */
static void cancel(struct cancelled *thread) {
    enum { CANCELS = 32 };
    if (pthread_cancel(thread->id) != EAGAIN) return;
    while (syscall(SYS_tgkill, getpid(), thread->tid, CANCELS) && errno == EAGAIN) usleep(1000);
}
static long cancels(long count, long kind) {
    long cancelled = 0;
    for (long i = 0; i < count; i++) {
        struct cancelled thread = { .kind = kind };
        void *end = 0;
        if (pthread_create(&thread.id, 0, is_cancelled, &thread)) return -1;
        usleep(200 * (i % 5));
        cancel(&thread);
        pthread_join(thread.id, &end);
        cancelled += end == PTHREAD_CANCELED;
    }
    return cancelled;
}
static pthread_key_t key;
static pthread_once_t key_made = PTHREAD_ONCE_INIT;
static void at_thread_end(void *block) { free(block); free(malloc(70)); }
static void make_key(void) { pthread_key_create(&key, at_thread_end); }
static void allocates(void) { free(malloc(200)); }

/* Processes. */
static void leave(long code) {
    if (me->is_shut) syscall(me->is_shut == 2 ? SYS_exit : SYS_exit_group, code);
    look(me->lane, handlers, 3);
    _exit(code);
}
static pid_t fork_by(long kind) {
    switch (kind) {
        case 1: return _Fork();
        case 2: return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        case 3: return syscall(RAW_FORK);
        default: return fork();
    }
}
static void forks(const struct step *step, int from) {
    pid_t pid = fork_by(step->a);
    if (pid < 0) { result(me->lane, "fork", 4, pid, errno); return; }
    if (pid) { result(me->lane, "child", 5, wait_for(pid), 0); return; }
    is_silent_child = step->a < 2;
    me->fiber = 0;
    me->is_thread = 0;
    put(me->lane, "child {\n");
    run(from, step->end);
    put(me->lane, "}\n");
    if (step->b && !me->is_shut) { look(me->lane, handlers, 3); exit(8); }
    if (step->c) _exit(7);
    leave(7);
}
/* The arguments of a program that executes the steps in a block. */
static void fill_arguments(char **arguments, const struct step *step, int from) {
    /* Each thread has its own: several start programs at once. */
    static __thread char number_text[16];
    int count = 0;
    snprintf(number_text, sizeof number_text, "%d", (int)(me->lane - shared->lanes));
    arguments[count++] = words[0];
    arguments[count++] = words[1];
    arguments[count++] = number_text;
    arguments[count++] = words[3];
    for (int i = from; i < step->end; i++) arguments[count++] = words[FIRST_STEP + i];
    arguments[count] = 0;
}
/* Starts a program in ways that do not take its path, arguments and environment as they are. Returns
 * whether `kind` is one. */
static int start_otherwise(long kind, char **arguments, long *ended, int *error) {
    enum { LINE = 64 << 10 };
    char folder[512], *name, line[4096];
    pid_t pid = -1;
    snprintf(folder, sizeof folder, "%s", words[0]);
    name = strrchr(folder, '/');
    *name++ = 0;
    if (kind == 9 || kind == 10) {
        char *whole = mmap(0, LINE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        shell_line(whole, LINE, arguments);
        if (kind == 9) *ended = system(whole);
        else {
            FILE *file = popen(whole, "r");
            while (file && fgets(line, sizeof line, file)) fputs(line, stdout);
            *ended = file ? pclose(file) : -1;
        }
        munmap(whole, LINE);
        return 1;
    }
    if (kind == 12) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 9, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_addclose(&actions, 9);
#ifdef __GLIBC__
        posix_spawn_file_actions_addchdir_np(&actions, folder);
        snprintf(line, sizeof line, "./%s", name);
#else
        snprintf(line, sizeof line, "%s", words[0]);
#endif
        *error = posix_spawn(&pid, line, &actions, 0, arguments, environ);
        posix_spawn_file_actions_destroy(&actions);
    } else if (kind == 13) {
        if (!(pid = fork())) { setenv("PATH", folder, 1); execvp(name, arguments); _exit(127); }
    } else if (kind == 14) {
        if (!(pid = vfork())) { execlp("env", "env", "-u", "NOTHING", words[0], arguments[1], arguments[2], arguments[3], "pairs:9:9", (char *)0); _exit(127); }
    } else if (kind == 15) {
        /* Each thread has its own, on its own stack as this line. */
        snprintf(line, sizeof line, "%s/script.%d.%p", plugin_folder, (int)getpid(), (void *)line);
        int file = open(line, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
        if (file < 0 || dprintf(file, "exec \"$@\"\n") < 0) return 1;
        close(file);
        char *whole[MOST_STEPS + 9] = { line };
        for (int i = 0; (whole[i + 1] = arguments[i]); i++) ;
        /* A child that another thread has just forked may still have it open. */
        if (!(pid = fork())) { do execvp(line, whole); while (errno == ETXTBSY && !sched_yield()); _exit(127); }
        *ended = wait_for(pid);
        unlink(line);
        return 1;
    } else return 0;
    *ended = pid > 0 ? wait_for(pid) : -1;
    return 1;
}
static char many[1500][16];
static void start(const struct step *step, int from) {
    static char no_preload[] = "HARM_X=1";
    char *arguments[MOST_STEPS + 8], *other[128], *empty[] = { 0 }, **volatile environment = environ;
    int kept = 0;
    long outcome = -1;
    fill_arguments(arguments, step, from);
    if (step->b == 1) environment = empty;
    if (step->b == 2) {
        for (char **at = environ; at && *at && kept < 120; at++) if (strncmp(*at, "MANY_", 5)) other[kept++] = *at;
        other[kept++] = no_preload;
        other[kept] = 0;
        environment = other;
    }
    if (step->b == 6) {
        /* In the thread's own memory: others may be here too. */
        char **all = alloca(1700 * sizeof *all);
        for (char **at = environ; at && *at && kept < 120; at++) if (strncmp(*at, "MANY_", 5)) all[kept++] = *at;
        for (int i = 0; i < 1500; i++) all[kept++] = many[i];
        all[kept] = 0;
        environment = all;
    }
    if (step->b == 3) { errno = 0; char **volatile bad = (char **)1; execve(words[0], arguments, bad); result(me->lane, "bad", 3, -1, errno); }
    const char *path = step->b == 4 ? "/nonexistent/program" : step->b == 5 ? "/bin/true" : words[0];
    pid_t pid = -1;
    int error = 0;
    if (start_otherwise(step->a, arguments, &outcome, &error)) {
        result(me->lane, "start", 5, 1, error);
        result(me->lane, "started", 7, outcome, 0);
        return;
    }
    switch (step->a) {
        case 1: if (!(pid = vfork())) { execve(path, arguments, environment); _exit(127); } break;
        case 2: error = posix_spawn(&pid, path, 0, 0, arguments, environment); break;
        case 3: {
            posix_spawnattr_t attributes;
            sigset_t all;
            sigfillset(&all);
            posix_spawnattr_init(&attributes);
            posix_spawnattr_setsigdefault(&attributes, &all);
            sigemptyset(&all);
            sigaddset(&all, SIGUSR2);
            posix_spawnattr_setsigmask(&attributes, &all);
            posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
            error = posix_spawnp(&pid, path, 0, &attributes, arguments, environment);
            break;
        }
        case 4: if (!(pid = fork())) { int file = open(path, O_RDONLY | O_CLOEXEC); fexecve(file, arguments, environment); _exit(127); } break;
        case 5: if (!(pid = fork())) { syscall(SYS_execveat, AT_FDCWD, path, arguments, environment, 0); _exit(127); } break;
        case 6: if (!(pid = syscall(SYS_clone, SIGCHLD | CLONE_VFORK, 0, 0, 0, 0))) { execve(path, arguments, environment); _exit(127); } break;
        case 7: execve(path, arguments, environment); error = errno; break;
        case 8: if (!(pid = fork())) { raw_call(SYS_execve, (long)path, (long)arguments, (long)environment); _exit(127); } break;
        case 11: if (!(pid = fork())) { int file = open(path, O_PATH | O_CLOEXEC); syscall(SYS_execveat, file, "", arguments, environment, AT_EMPTY_PATH); _exit(127); } break;
        default: if (!(pid = fork())) { execve(path, arguments, environment); _exit(127); }
    }
    long ended = pid > 0 ? wait_for(pid) : -1;
    result(me->lane, "start", 5, pid > 0, error);
    result(me->lane, "started", 7, ended, 0);
}

/* Sandboxes. */
#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
#define FILTER(...) ({ \
        struct sock_filter rules[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)), __VA_ARGS__ }; \
        struct sock_fprog whole = { sizeof rules / sizeof *rules, rules }; \
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); \
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole); })
static long sandbox(long kind) {
    unsigned action = SECCOMP_RET_ALLOW;
    switch (kind) {
        case 0: me->is_shut = 2; return prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        case 1: me->is_shut = 1; return FILTER(ALLOW(exit), ALLOW(exit_group), ALLOW(brk), ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(write),
                                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
        case 2: return FILTER(REFUSE(rt_sigprocmask), REFUSE(gettid), REFUSE(mprotect), REFUSE(madvise), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
        case 3: return FILTER(REFUSE(socket), REFUSE(connect), REFUSE(memfd_create), REFUSE(process_vm_readv), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
        case 4: return FILTER(REFUSE(reboot), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
        case 5: return prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
        case 6: return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        case 7: return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0);
        default: return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action);
    }
}
static long fault(long kind) {
    sigjmp_buf start;
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGILL, &action, 0);
    char *page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long caught = 1;
    me->fault = &start;
    if (sigsetjmp(start, 1) == 0) {
        caught = 0;
        if (kind == 0 && page != MAP_FAILED) *(volatile char *)page = 1;
        if (kind == 1) __asm__ volatile(UNDEFINED_INSTRUCTION);
        if (kind == 2) raise(SIGSEGV);
    } else caught = 1;
    me->fault = 0;
    if (page != MAP_FAILED) munmap(page, 4096);
    return caught;
}
static long handled(const struct step *step, int from) {
    struct place kept = *me;
    sigjmp_buf start;
    stack_t stack = { .ss_size = 128 << 10 }, none = { .ss_flags = SS_DISABLE };
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };
    int number = SIGRTMIN + 2 + me->signals % 8;
    volatile long jumped = 0;
    sigaction(number, &action, 0);
    if (step->a & 1) {
        stack.ss_sp = mmap(0, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack.ss_sp == MAP_FAILED) return -1;
        result(me->lane, "altstack", 8, sigaltstack(&stack, 0), 0);
    }
    me->fiber = 0;
    me->signals++;
    me->from = from;
    me->to = step->end;
    me->jump = step->a & 2 ? &start : 0;
    if (sigsetjmp(start, 1) == 0) pthread_kill(pthread_self(), number); else jumped = 1;
    me->fiber = kept.fiber;
    me->signals = kept.signals;
    me->from = kept.from;
    me->to = kept.to;
    me->jump = kept.jump;
    if (step->a & 1 && sigaltstack(&none, 0) == 0) munmap(stack.ss_sp, stack.ss_size);
    return jumped;
}
static long allocation(const struct step *s) {
    int slot = s->a & 7;
    void *block = 0;
    long value;
    if (is(s, "free")) { free_block(slot); return 0; }
    if (is(s, "realloc") || is(s, "reallocarray")) {
        if (!is_intact(slot)) put(me->lane, "a block has changed\n");
        void *old = me->blocks[slot];
        size_t size = is(s, "realloc") ? (size_t)s->b : (size_t)s->b * s->c;
        block = is(s, "realloc") ? realloc(old, size) : reallocarray(old, s->b, s->c);
        if (!old) return set_block(slot, block, size);
        if (!block) {
            if (!size) { COUNT(frees); me->blocks[slot] = 0; }
            return 0;
        }
        COUNT(resizes);
        size_t same = size < me->sizes[slot] ? size : me->sizes[slot];
        for (size_t i = 0; i < ends_filled(same); i++) if (((char *)block)[i] != 0x50 + slot) { put(me->lane, "moved wrongly\n"); break; }
        me->sizes[slot] = size;
        me->blocks[slot] = block;
        memset(block, 0x50 + slot, ends_filled(size));
        if (size) ((char *)block)[size - 1] = 0x50 + slot;
        return 1;
    }
    int kept = errno;
    free_block(slot);
    errno = kept;
    size_t size = s->b;
    if (is(s, "malloc")) block = malloc(size);
    else if (is(s, "calloc")) {
        block = calloc(s->b, s->c);
        size = (size_t)s->b * s->c;
        for (size_t i = 0; block && i < ends_filled(size); i++) if (((char *)block)[i]) put(me->lane, "not zero\n");
    } else if (is(s, "aligned")) block = aligned_alloc(s->c, size);
    else if (is(s, "memalign")) block = memalign(s->c, size);
    else if (is(s, "valloc")) block = valloc(size);
    else if (is(s, "pvalloc")) block = pvalloc(size);
    else if (is(s, "posix")) { value = posix_memalign(&block, s->c, size); if (value) return value; }
    else if (is(s, "huge")) { block = malloc((size_t)PTRDIFF_MAX - size); }
    else if (is(s, "overflow")) { block = calloc((size_t)1 << 40, (size_t)1 << (20 + s->b % 20)); }
    if (block && malloc_usable_size(block) < size) put(me->lane, "too small\n");
    if (block && s->c > 16 && !(s->c & (s->c - 1)) && !is(s, "calloc") && (uintptr_t)block % s->c) put(me->lane, "not aligned\n");
    return set_block(slot, block, size);
}
static const char *const allocations[] = { "malloc", "calloc", "realloc", "reallocarray", "free", "aligned", "memalign", "valloc", "pvalloc", "posix", "huge", "overflow" };

static long plugin(const struct step *s) {
    char path[512];
    int index = s->a & 3;
    if (is(s, "dlclose")) {
        if (!me->plugins[index]) return -2;
        long value = dlclose(me->plugins[index]);
        me->plugins[index] = 0;
        return value;
    }
    if (!me->plugins[index]) {
        snprintf(path, sizeof path, "%s/plug%d.so", plugin_folder, index);
        me->plugins[index] = dlopen(path, (is(s, "dlopen") && s->b & 1 ? RTLD_LAZY : RTLD_NOW) | (is(s, "dlopen") && s->b & 2 ? RTLD_GLOBAL : RTLD_LOCAL));
    }
    if (!me->plugins[index]) return -1;
    if (is(s, "dlopen")) return 1;
    long (*call)(long, long) = (long (*)(long, long))dlsym(me->plugins[index], "plugin_call");
    return call ? call(s->b, s->c) : -3;
}
static void libc_call(const struct step *s, long *value) {
    char *text = 0, name[32];
    switch (s->a) {
        case 0: *value = asprintf(&text, "%ld %s", s->b, "words"); free(text); break;
        case 1: text = strdup("some words"); *value = strlen(text); free(text); break;
        case 2: { FILE *file = fopen("/proc/sys/kernel/ostype", "r"); size_t room = 0; *value = file ? getline(&text, &room, file) : -1; free(text); if (file) fclose(file); break; }
        case 3: { DIR *folder = opendir("/proc/self/task"); *value = !!folder; if (folder) closedir(folder); break; }
        case 4: snprintf(name, sizeof name, "HARM_%ld", s->b); *value = setenv(name, "value", 1); break;
        case 5: snprintf(name, sizeof name, "HARM_%ld", s->b); *value = unsetenv(name); break;
        case 6: *value = clearenv(); break;
#ifdef __GLIBC__
        case 7: *value = mallopt(M_ARENA_MAX, 2); break;
        case 8: malloc_trim(0); break;
        case 9: { struct mallinfo2 info = mallinfo2(); *value = info.arena > 0; break; }
#endif
        case 10: { FILE *file = tmpfile(); *value = file ? fprintf(file, "%ld", s->b) : -1; if (file) fclose(file); break; }
        case 11: *value = malloc_usable_size(0); break;
        case 12: { FILE *file = popen("echo words", "r"); *value = file ? fgetc(file) : -1; if (file) *value += pclose(file); break; }
        case 13: *value = system("exit 5"); break;
        default: *value = printf("line %ld\n", s->b);
    }
}
static void descriptor_call(const struct step *s, long *value) {
    int two[2] = { -1, -1 };
    long count = 0;
    int opened[64];
    switch (s->a) {
        case 0: *value = open("/dev/null", O_RDWR | (s->b & 1 ? O_CLOEXEC : 0)); break;
        case 1: *value = close(s->b); break;
        case 2: *value = dup2(s->b, s->c); break;
        case 3: *value = dup(s->b); break;
        case 4: *value = close_range(s->b, s->c, 0); break;
        case 5: *value = pipe(two); put_number(me->lane, two[0] * 100 + two[1], 10); put(me->lane, "\n"); break;
        case 6: while (count < 64 && (opened[count] = open("/dev/null", O_RDONLY)) >= 0) count++; *value = count; while (count) close(opened[--count]); break;
        case 7: *value = close_range(s->b, s->c, CLOSE_RANGE_CLOEXEC); break;
        default: *value = fcntl(s->b, F_GETFD);
    }
}
static void float_call(const struct step *s) {
    static const int rounds[] = { FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO }, flags[] = { FE_INEXACT, FE_OVERFLOW, FE_DIVBYZERO, FE_INVALID };
    switch (s->a) {
        case 0: fesetround(rounds[s->b & 3]); break;
        case 1: feclearexcept(FE_ALL_EXCEPT); break;
        case 2: feraiseexcept(flags[s->b & 3]); break;
        case 3: feclearexcept(FE_ALL_EXCEPT); feenableexcept(flags[s->b & 3]); break;
        default: change_float_mode(s->a);
    }
}
/* Returns whether a signal or a timer may be made that stays. The kernel has one limit for all processes of a
 * user, and a handler that a fault calls again and again reaches it. */
static int may_queue(void) {
    enum { MOST = 50 };
    static _Atomic int queued;
    return queued++ < MOST;
}
static void signal_call(const struct step *s, long *value) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, s->b);
    struct itimerval timer = { { 0, 0 }, { 1000 + s->b, 0 } };
    stack_t stack = { .ss_size = 64 << 10 };
    timer_t made;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
    switch (s->a) {
        case 0: *value = pthread_sigmask(SIG_BLOCK, &set, 0); break;
        case 1: *value = pthread_sigmask(SIG_BLOCK, &set, 0) || (may_queue() && pthread_kill(pthread_self(), s->b)); break;
        case 2: *value = pthread_sigmask(SIG_BLOCK, &set, 0) || (may_queue() && sigqueue(getpid(), s->b, (union sigval){ .sival_int = 3 })); break;
        case 3: *value = signal(s->b, SIG_IGN) == SIG_ERR; break;
        case 4: *value = signal(s->b, SIG_DFL) == SIG_ERR; break;
        case 5: *value = setitimer(s->b % 3, &timer, 0); break;
        case 6: stack.ss_sp = mmap(0, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); *value = sigaltstack(&stack, 0); break;
        case 7: *value = may_queue() ? timer_create(CLOCK_MONOTONIC, &event, &made) : 0; break;
        default: { struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESETHAND }; sigaddset(&action.sa_mask, SIGUSR2); *value = sigaction(s->b, &action, 0); }
    }
}
static void system_call(const struct step *s, long *value) {
    static const int kinds[] = { RLIMIT_NOFILE, RLIMIT_STACK, RLIMIT_NPROC, RLIMIT_MEMLOCK, RLIMIT_FSIZE, RLIMIT_CORE, RLIMIT_SIGPENDING, RLIMIT_DATA, RLIMIT_AS };
    cpu_set_t one;
    if (is(s, "limit")) {
        struct rlimit limit;
        int kind = kinds[s->a % 9];
        getrlimit(kind, &limit);
        limit.rlim_cur = kind >= RLIMIT_DATA && (kind == RLIMIT_AS || kind == RLIMIT_DATA) ? (rlim_t)s->b << 20 : (rlim_t)s->b;
        if (limit.rlim_max < limit.rlim_cur) limit.rlim_cur = limit.rlim_max;
        if (s->c) limit.rlim_max = limit.rlim_cur;
        *value = setrlimit(kind, &limit);
        return;
    }
    switch (s->a) {
        case 0: *value = prctl(PR_SET_NAME, s->b & 1 ? "a name" : "b"); break;
        case 1: umask(s->b); *value = 0; break;
        case 2: *value = chdir(s->b & 1 ? "/usr" : "/"); break;
        case 3: *value = setpriority(PRIO_PROCESS, 0, s->b); break;
        case 4: *value = prctl(PR_SET_DUMPABLE, s->b & 1, 0, 0, 0); break;
        case 5: *value = prctl(PR_SET_CHILD_SUBREAPER, s->b & 1, 0, 0, 0); break;
        case 6: *value = prctl(PR_SET_TIMERSLACK, 1000 * s->b, 0, 0, 0); break;
        case 7: CPU_ZERO(&one); CPU_SET(0, &one); *value = sched_setaffinity(0, sizeof one, &one); break;
        case 8: { struct rlimit old; *value = prlimit(0, RLIMIT_NOFILE, 0, &old) ? -1 : (long)old.rlim_cur; break; }
        case 9: *value = (long)sbrk(s->b * 4096) == -1; break;
        case 10: *value = mlockall(MCL_CURRENT | (s->b & 1 ? MCL_FUTURE : 0)); break;
        case 11: *value = munlockall(); break;
        case 12: *value = setgid(65534) || setuid(65534); break;
        case 13: *value = chroot("/usr"); break;
        case 14: *value = unshare(s->b & 1 ? CLONE_NEWNS : CLONE_FILES | CLONE_FS); break;
        case 15: *value = prctl(PR_SET_KEEPCAPS, s->b & 1, 0, 0, 0); break;
        default: { struct timespec nap = { 0, 100000 }; *value = nanosleep(&nap, 0); }
    }
}
static void end(long kind) {
    if (!me->is_shut) look(me->lane, handlers, 3);
    switch (kind) {
        case 1: exit(3);
        case 2: _exit(4);
        case 3: quick_exit(5);
        case 4: abort();
        case 5: signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); break;
        case 6: raise(SIGKILL); break;
        case 7: signal(SIGTERM, SIG_DFL); raise(SIGTERM); break;
        case 8: pthread_exit(0);
    }
    _exit(9);
}
static void leaf(const struct step *s) {
    long value = 0;
    errno = 99;
    for (size_t i = 0; i < sizeof allocations / sizeof *allocations; i++)
        if (is(s, allocations[i])) { value = allocation(s); goto done; }
    if (is(s, "pairs")) pairs(s->a, s->b);
    else if (is(s, "deep")) deep(s->a, s->b);
    else if (is(s, "stacks")) branch(s->a);
    else if (is(s, "dlopen") || is(s, "dlclose") || is(s, "plugin")) value = plugin(s);
    else if (is(s, "libc")) libc_call(s, &value);
    else if (is(s, "fd")) descriptor_call(s, &value);
    else if (is(s, "float")) float_call(s);
    else if (is(s, "signal")) signal_call(s, &value);
    else if (is(s, "limit") || is(s, "system")) system_call(s, &value);
    else if (is(s, "sandbox")) value = sandbox(s->a);
    else if (is(s, "fault")) value = fault(s->a);
    else if (is(s, "cancel")) value = cancels(s->a, s->b);
    else if (is(s, "key")) { pthread_once(&key_made, make_key); value = pthread_setspecific(key, malloc(s->a)); }
    else if (is(s, "small")) value = on_small(s->a, s->b);
    else if (is(s, "churn")) value = churn(s->a);
    else if (is(s, "mount")) value = mounts(s->a);
    else if (is(s, "lock")) value = locks(s->a);
    else if (is(s, "timeout")) value = times_out(s->a);
    else if (is(s, "atfork")) value = pthread_atfork(allocates, allocates, allocates);
    else if (is(s, "atexit")) value = atexit(allocates);
    else if (is(s, "jumps")) disturbed(s->a);
    else if (is(s, "rawforks")) value = forks_in_handler(s->a);
    else if (is(s, "look")) look(me->lane, handlers, 3);
    else if (is(s, "end")) end(s->a);
    else put(me->lane, "unknown step\n");
    int error;
done:
    error = errno;
    result(me->lane, s->op, s->size, value, error);
}
static void run(int from, int to) {
    for (int at = from; at < to;) {
        const struct step *step = &steps[at];
        if (!step->end) { leaf(step); at++; }
        else {
            if (is(step, "threads")) threads(step, at + 1);
            else if (is(step, "fork")) forks(step, at + 1);
            else if (is(step, "exec")) start(step, at + 1);
            else if (is(step, "guard")) { char *arguments[MOST_STEPS + 8]; fill_arguments(arguments, step, at + 1); guarded(step->a, step->b, arguments); }
            else if (is(step, "coroutines")) coroutines(step, at + 1);
            else if (is(step, "handler")) { errno = 99; long value = handled(step, at + 1); result(me->lane, "handled", 7, value, errno); }
            else if (is(step, "only")) { if (me->number == step->a) run(at + 1, step->end); }
            else if (is(step, "storm")) {
                handle_alarms(step->a);
                set_alarm(step->b);
                run(at + 1, step->end);
                set_alarm(0);
            }
            at = step->end + 1;
        }
        yield();
    }
}
static void parse(int count, char **from) {
    int open_steps[64], depth = 0;
    for (int i = 0; i < 1500; i++) snprintf(many[i], sizeof *many, "MANY_%d=%d", i, i);
    must(count < MOST_STEPS, "too many steps");
    for (int i = 0; i < count; i++) {
        const char *word = from[i], *at = word;
        struct step *step = &steps[step_count++];
        if (*word == '}') { must(depth > 0, "a closing brace"); steps[open_steps[--depth]].end = i; continue; }
        step->op = word;
        step->size = strcspn(word, ":{");
        at += step->size;
        for (long *number = &step->a; *at == ':' && number <= &step->c; number++) *number = strtol(at + 1, (char **)&at, 10);
        if (*at == '{') { must(depth < 64, "nested too deep"); open_steps[depth++] = i; }
    }
    must(depth == 0, "an open brace");
}
int main(int argc, char **argv) {
    must(argc >= FIRST_STEP, "LOG LANE PLUGINS STEPS");
    int lane = atoi(argv[2]);
    open_log(argv[1], lane < 0);
    words = argv;
    plugin_folder = argv[3];
    first.lane = &shared->lanes[lane < 0 ? 0 : lane];
    parse(argc - FIRST_STEP, argv + FIRST_STEP);
    put(first.lane, "process {\n");
    look(first.lane, handlers, 3);
    run(0, step_count);
    put(first.lane, "}\n");
    if (!first.is_shut) look(first.lane, handlers, 3);
    for (int i = 0; i < 8; i++) free_block(i);
    if (first.is_shut) leave(0);
    return 0;
}
