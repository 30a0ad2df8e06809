// Holds blocks in a global cache, in thread-local data, on a stack and in shared memory, has cycles and
// lost blocks, and then runs on: one thread allocates, one waits, and main looks for children that it
// has not made, and for a pipe that does not end when it closes it.
// Argument: sessions. Prints "ready", and at the end of its input what it has seen.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <poll.h>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

struct Order {
    long id;
    char text[40];
};

struct Session {
    std::vector<std::unique_ptr<Order>> orders;
};

struct Node {
    std::shared_ptr<Node> other;
    long numbers[3];
};

std::map<int, Session> *cache = new std::map<int, Session>;
thread_local char *of_thread;
std::atomic<bool> is_over{false};
std::atomic<int> forks{0};

__attribute__((noinline)) void open_session(int id) {
    for (int number = 0; number < 4; number++)
        (*cache)[id].orders.push_back(std::make_unique<Order>());
}

__attribute__((noinline)) void make_cycle() {
    auto one = std::make_shared<Node>(), other = std::make_shared<Node>();
    one->other = other;
    other->other = one;
}

__attribute__((noinline)) void lose() {
    void *volatile block = calloc(1, 104);
    block = nullptr;
    (void)block;
}

__attribute__((noinline)) char *keep_in_thread() { return of_thread = static_cast<char *>(malloc(1111)); }
__attribute__((noinline)) char *keep_on_stack() { return static_cast<char *>(malloc(2222)); }
__attribute__((noinline)) char *keep_shared() { return static_cast<char *>(malloc(3333)); }

__attribute__((noinline)) void scrub() {
    volatile char stack[16384];
    for (volatile char &byte : stack)
        byte = 0;
}

int main(int, char **arguments) {
    pthread_atfork([] { forks++; }, nullptr, nullptr);
    int sessions = atoi(arguments[1]);
    for (int number = 0; number < sessions; number++)
        open_session(number);
    for (int number = 0; number < 200; number++) {
        make_cycle();
        lose();
    }
    scrub();
    void *memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *static_cast<char **>(memory) = keep_shared();
    std::atomic<int> ready{0};
    std::thread waits([&] {
        char *volatile on_stack = keep_on_stack();
        keep_in_thread();
        ready++;
        while (!is_over)
            usleep(500);
        if (on_stack == of_thread)
            abort();
    });
    std::thread allocates([&] {
        ready++;
        while (!is_over) {
            Order *volatile one = new Order();
            delete one;
        }
    });
    while (ready < 2)
        usleep(100);
    puts("ready");
    fflush(stdout);
    int children = 0, late_ends = 0, interrupted = 0;
    struct pollfd input = {0, POLLIN, 0};
    while (true) {
        int result = poll(&input, 1, 1);
        interrupted += result < 0;
        if (result > 0)
            break;
        children += waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD;
        int pipes[2];
        char byte;
        if (pipe(pipes))
            abort();
        close(pipes[1]);
        struct pollfd end = {pipes[0], POLLIN, 0};
        late_ends += poll(&end, 1, 50) != 1 || read(pipes[0], &byte, 1) != 0;
        close(pipes[0]);
    }
    is_over = true;
    waits.join();
    allocates.join();
    printf("forks %d children %d late %d interrupted %d left %d\n", forks.load(), children, late_ends, interrupted,
           waitpid(-1, nullptr, WNOHANG | __WALL) != -1);
    fflush(stdout);
    _exit(0);
}
