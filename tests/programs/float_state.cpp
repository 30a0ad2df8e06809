// Calls each function that the library exports, also where blocks are sampled, and checks that
// the flags and control registers of the floating-point units and the direction flag are
// unchanged.
#include <cfenv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <initializer_list>
#include <malloc.h>
#include <new>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
struct State { uint32_t mxcsr; uint16_t control, status, tags; uint64_t flags; };
static State now() {
    State state = {};
    uint32_t x87[7];
    asm volatile("stmxcsr %0\n fnstenv %1\n fldenv %1" : "=m"(state.mxcsr), "=m"(x87));
    asm volatile("pushfq\n pop %0" : "=r"(state.flags));
    state.control = x87[0];
    state.status = x87[1];
    state.tags = x87[2];
    state.flags &= 1 << 10;
    return state;
}
static int differ;
static void *kept;
template <class F> static void check(const char *name, F call) {
    for (int round = 0; round < 2000 && !differ; round++) {
        State before = now();
        call();
        State after = now();
        if (memcmp(&before, &after, sizeof before)) {
            fprintf(stderr, "%s: mxcsr %x %x, x87 %x %x\n", name, before.mxcsr, after.mxcsr, before.status, after.status);
            differ = 1;
        }
    }
}
template <class F> static void once(const char *name, F call) {
    static int rounds;
    rounds = 0;
    check(name, [&] { if (!rounds++) call(); });
}
int main() {
    const std::align_val_t align{64};
    char *bad[] = { nullptr };
    for (int rounding : { FE_TONEAREST, FE_UPWARD }) {
        fesetround(rounding);
        feclearexcept(FE_ALL_EXCEPT);
        check("malloc", [] { free(malloc(100)); });
        check("calloc", [] { free(calloc(10, 10)); });
        check("realloc", [] { free(realloc(malloc(10), 1000)); });
        check("reallocarray", [] { free(reallocarray(malloc(10), 10, 100)); });
        check("posix_memalign", [] { if (!posix_memalign(&kept, 64, 100)) free(kept); });
        check("aligned_alloc", [] { free(aligned_alloc(64, 128)); });
        check("memalign", [] { free(memalign(64, 100)); });
        check("valloc", [] { free(valloc(100)); });
        check("pvalloc", [] { free(pvalloc(100)); });
        check("malloc_usable_size", [] { kept = malloc(3); malloc_usable_size(kept); free(kept); });
        for (const char *name : { "cfree", "free_sized", "free_aligned_sized" }) {
            void *found = dlsym(RTLD_DEFAULT, name);
            if (found) check(name, [&] {
                if (strcmp(name, "free_aligned_sized")) reinterpret_cast<void (*)(void *, size_t)>(found)(malloc(100), 100);
                else reinterpret_cast<void (*)(void *, size_t, size_t)>(found)(aligned_alloc(64, 128), 64, 128);
            });
        }
        check("new", [] { operator delete(operator new(100)); });
        check("new[]", [] { operator delete[](operator new[](100)); });
        check("new, nothrow", [] { operator delete(operator new(100, std::nothrow), std::nothrow); });
        check("new[], nothrow", [] { operator delete[](operator new[](100, std::nothrow), std::nothrow); });
        check("delete, sized", [] { operator delete(operator new(100), size_t(100)); });
        check("delete[], sized", [] { operator delete[](operator new[](100), size_t(100)); });
        check("new, aligned", [&] { operator delete(operator new(100, align), align); });
        check("new[], aligned", [&] { operator delete[](operator new[](100, align), align); });
        check("new, aligned, nothrow", [&] { operator delete(operator new(100, align, std::nothrow), align, std::nothrow); });
        check("new[], aligned, nothrow", [&] { operator delete[](operator new[](100, align, std::nothrow), align, std::nothrow); });
        check("delete, aligned, sized", [&] { operator delete(operator new(100, align), size_t(100), align); });
        check("delete[], aligned, sized", [&] { operator delete[](operator new[](100, align), size_t(100), align); });
        check("prctl", [] { prctl(PR_GET_DUMPABLE); });
        check("syscall", [] { syscall(SYS_getpid); });
        once("fork", [] { pid_t pid = fork(); if (!pid) _exit(differ); waitpid(pid, nullptr, 0); });
        once("_Fork", [] { pid_t pid = _Fork(); if (!pid) _exit(differ); waitpid(pid, nullptr, 0); });
        once("dlclose", [] { dlclose(dlopen(nullptr, RTLD_NOW)); });
        once("posix_spawn", [&] { pid_t pid; if (!posix_spawn(&pid, "/bin/true", nullptr, nullptr, bad, environ)) waitpid(pid, nullptr, 0); });
        once("posix_spawnp", [&] { pid_t pid; if (!posix_spawnp(&pid, "true", nullptr, nullptr, bad, environ)) waitpid(pid, nullptr, 0); });
        once("execve", [&] { execve("/nowhere", bad, environ); });
        once("execv", [&] { execv("/nowhere", bad); });
        once("execvp", [&] { execvp("no-such-program", bad); });
        once("execvpe", [&] { execvpe("no-such-program", bad, environ); });
        once("execl", [] { execl("/nowhere", "a", static_cast<char *>(nullptr)); });
        once("execle", [] { execle("/nowhere", "a", static_cast<char *>(nullptr), environ); });
        once("execlp", [] { execlp("no-such-program", "a", static_cast<char *>(nullptr)); });
        once("fexecve", [&] { fexecve(1000, bad, environ); });
        once("execveat", [&] { execveat(AT_FDCWD, "/nowhere", bad, environ, 0); });
    }
    puts(differ ? "changed" : "as before");
    return differ;
}
