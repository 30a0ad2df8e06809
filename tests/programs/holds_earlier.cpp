// Runs while it is attached: has blocks from before, in the main heap and in an arena of a thread, that hold
// new ones, and whose freed neighbors still have the addresses of lost ones. At the end of each line of its
// input it makes the new ones once, and prints "done".
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

struct Holder {
    void *held = nullptr;
    Holder *next = nullptr;
    char body[80] = {};
};

struct Node {
    std::shared_ptr<Node> peer;
    char body[100];
};

// Nothing but blocks from before leads to what these hold.
static Holder *first_holder, *first_of_thread;
static std::vector<void *> *old_table = new std::vector<void *>(3000);
static std::unordered_map<int, std::unique_ptr<char[]>> *cache = new std::unordered_map<int, std::unique_ptr<char[]>>;
static void *of_global[100];
static void **volatile holders[500];
static std::atomic<bool> is_done{false};

static Holder *make_holders(int count) {
    Holder *first = nullptr;
    for (int number = 0; number < count; number++) {
        auto *holder = new Holder;
        holder->next = first;
        first = holder;
        // Gaps that are free at the attach.
        free(malloc(48 + number % 64));
    }
    return first;
}

__attribute__((noinline)) void *hold_in_old() { return malloc(56); }
__attribute__((noinline)) void *hold_in_thread() { return malloc(72); }
__attribute__((noinline)) void *hold_in_table() { return malloc(40); }
__attribute__((noinline)) void *hold_in_global() { return malloc(136); }
__attribute__((noinline)) char *hold_in_cache() { return new char[200]; }
__attribute__((noinline)) void *lose() { return calloc(1, 88); }
__attribute__((noinline)) void make_cycle() {
    auto one = std::make_shared<Node>(), other = std::make_shared<Node>();
    one->peer = other;
    other->peer = one;
}

__attribute__((noinline)) static void scrub() {
    volatile char words[16384];
    memset(const_cast<char *>(words), 0, sizeof words);
}

__attribute__((noinline)) static void make_new() {
    for (Holder *holder = first_holder; holder; holder = holder->next) holder->held = hold_in_old();
    for (Holder *holder = first_of_thread; holder; holder = holder->next) holder->held = hold_in_thread();
    for (void *&word : *old_table) word = hold_in_table();
    for (void *&word : of_global) word = hold_in_global();
    for (int number = 0; number < 1000; number++) (*cache)[number].reset(hold_in_cache());
    for (auto &holder : holders) {
        holder = static_cast<void **>(malloc(120));
        static_cast<void *volatile *>(holder)[3] = lose();
    }
    for (auto &holder : holders) {
        // Free memory still has the address of what is lost.
        free(holder);
        holder = nullptr;
    }
    for (int number = 0; number < 200; number++) make_cycle();
}

int main() {
    first_holder = make_holders(2000);
    // In an arena of its own.
    std::thread other([] {
        first_of_thread = make_holders(1500);
        is_done = true;
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    });
    while (!is_done) std::this_thread::yield();
    char line[16];
    setvbuf(stdin, nullptr, _IONBF, 0);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        make_new();
        scrub();
        puts("done");
        fflush(stdout);
    }
    _exit(0);
}
