// A cache that is never emptied, cycles of shared_ptr, and lost blocks: `holds` tells them apart.
// Argument: sessions.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

struct Order {
    long id;
    char text[40];
};

struct Session {
    std::vector<std::unique_ptr<Order>> orders;
    std::string name;
};

struct Cache {
    static Cache &instance() {
        static Cache cache;
        return cache;
    }
    std::unordered_map<unsigned long, std::shared_ptr<Session>> sessions;
};

struct Node {
    std::shared_ptr<Node> other;
    long numbers[3];
};

__attribute__((noinline)) void open_session(unsigned long id) {
    auto session = std::make_shared<Session>();
    for (int number = 0; number < 4; number++)
        session->orders.push_back(std::make_unique<Order>());
    session->name = "a session whose name has a block of its own";
    Cache::instance().sessions[id] = session;
}

__attribute__((noinline)) void make_cycle() {
    auto one = std::make_shared<Node>(), other = std::make_shared<Node>();
    one->other = other;
    other->other = one;
}

Order *kept[100];

__attribute__((noinline)) void keep(int number) { kept[number] = new Order(); }

__attribute__((noinline)) void lose() {
    void *volatile block = calloc(1, 104);
    block = nullptr;
    (void)block;
}

// Writes over what earlier calls have left on the stack.
__attribute__((noinline)) void scrub() {
    volatile char stack[16384];
    for (volatile char &byte : stack)
        byte = 0;
}

int main(int, char **arguments) {
    int sessions = atoi(arguments[1]);
    for (int number = 0; number < sessions; number++)
        open_session(number);
    for (int number = 0; number < 100; number++)
        keep(number);
    for (int number = 0; number < 200; number++) {
        make_cycle();
        lose();
    }
    scrub();
    return 0;
}
