// Pointers that a program has dropped, in memory that it still owns: behind the last element of a
// vector, and behind the end of a string.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

struct Node {
    std::shared_ptr<Node> other;
    char load[200];
};

struct Plain {
    char load[120];
};

static std::vector<Node *> g_index;
static std::vector<Plain *> g_plain;
static std::string g_text;

__attribute__((noinline)) static Node *make_cycle() {
    auto first = std::make_shared<Node>(), second = std::make_shared<Node>();
    first->other = second;
    second->other = first;
    return first.get();
}

__attribute__((noinline)) static Plain *make_plain() { return new Plain(); }

int main() {
    for (int i = 0; i < 50; i++) g_index.push_back(make_cycle());
    for (int i = 0; i < 40; i++) g_plain.push_back(make_plain());
    g_index.resize(1);
    g_plain.resize(10);
    g_text.resize(400);
    for (int i = 0; i < 20; i++) {
        Plain *hidden = make_plain();
        memcpy(&g_text[16 + 8 * i], &hidden, sizeof hidden);
    }
    g_text.resize(3);
    return 0;
}
