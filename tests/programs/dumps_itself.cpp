// Has blocks in a cache, lost ones, cycles of shared_ptr, and ones whose pointers are hidden by XOR. Lets
// gdb's gcore write its core, and runs on: it empties the cache and makes other blocks.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

struct Entry {
    char data[200];
};

struct Node {
    std::shared_ptr<Node> other;
    char data[100];
};

std::map<int, std::unique_ptr<Entry>> cache;
static uintptr_t hidden[50];
static void *later[500];

__attribute__((noinline)) static void fill() {
    for (int number = 0; number < 300; number++) cache[number] = std::make_unique<Entry>();
}

__attribute__((noinline)) static void lose(int count) {
    for (int number = 0; number < count; number++) {
        void *volatile block = malloc(72);
        memset(block, 7, 72);
        block = nullptr;
    }
}

__attribute__((noinline)) static void make_cycles() {
    for (int number = 0; number < 20; number++) {
        auto one = std::make_shared<Node>(), two = std::make_shared<Node>();
        one->other = two;
        two->other = one;
    }
}

__attribute__((noinline)) static void hide() {
    for (uintptr_t &word : hidden) {
        void *block = malloc(504);
        memset(block, 7, 504);
        word = reinterpret_cast<uintptr_t>(block) ^ 0x5a5a1234a5a59876;
    }
}

__attribute__((noinline)) static void clear_stack() {
    volatile char room[65536];
    for (size_t at = 0; at < sizeof room; at++) room[at] = 0;
}

int main() {
    static char output[4096];
    setvbuf(stdout, output, _IOFBF, sizeof output);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    fill();
    lose(40);
    make_cycles();
    hide();
    int pipes[2];
    if (pipe(pipes) != 0) return 1;
    std::thread other([&] {
        char byte;
        if (read(pipes[0], &byte, 1) != 1) _exit(1);
    });
    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    clear_stack();
    pid_t child = fork();
    if (child == 0) {
        // gdb is nobody's business here.
        const char *const arguments[] = {"gcore", "-o", "core", pid, nullptr};
        const char *const environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin", nullptr};
        freopen("/dev/null", "w", stdout);
        execve("/usr/bin/gcore", const_cast<char **>(arguments), const_cast<char **>(environment));
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (write(pipes[1], "x", 1) != 1) return 1;
    other.join();
    cache.clear();
    for (void *&block : later) block = malloc(333);
    lose(11);
    return WEXITSTATUS(status);
}
