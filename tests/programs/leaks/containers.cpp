// Leaks that are typical of C++ programs: containers that grow, objects that are never deleted,
// a cycle of shared pointers. A block of 13 bytes stands for a pause.
#include <cstdio>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

static void step() {
    for (int i = 0; i < 50; i++) {
        char *volatile block = new char[static_cast<size_t>(24 + i % 8 * 16)];
        delete[] block;
    }
    char *volatile mark = new char[13];
    delete[] mark;
}

#define SITE __attribute__((noipa))
struct Node { std::shared_ptr<Node> other; char text[40]; };
struct Order { std::string name; int number; };

static std::vector<long> *numbers;
static std::unordered_map<int, int> *index_of;
static std::list<int> *history;
static Order *volatile kept;

SITE static void grow_vector(int i) { for (int k = 0; k < 20; k++) numbers->push_back(i); }
SITE static void grow_map(int i) { for (int k = 0; k < 4; k++) (*index_of)[i * 4 + k] = k; }
SITE static void grow_list(int i) { for (int k = 0; k < 4; k++) history->push_back(i); }
SITE static void forget_order(int i) { kept = new Order{std::string(40, 'x'), i}; kept = new Order{std::string(50, 'y'), i}; }
SITE static void tie_cycle() {
    for (int k = 0; k < 3; k++) {
        auto a = std::make_shared<Node>(), b = std::make_shared<Node>();
        a->other = b;
        b->other = a;
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    numbers = new std::vector<long>;
    index_of = new std::unordered_map<int, int>;
    history = new std::list<int>;
    for (int i = 0; i < 200; i++) {
        if (!std::strcmp(mode, "grow_vector")) grow_vector(i);
        if (!std::strcmp(mode, "grow_map")) grow_map(i);
        if (!std::strcmp(mode, "grow_list")) grow_list(i);
        if (!std::strcmp(mode, "forget_order")) forget_order(i);
        if (!std::strcmp(mode, "tie_cycle")) tie_cycle();
        step();
    }
    return 0;
}
