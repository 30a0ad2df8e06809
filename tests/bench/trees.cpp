// trees ROUNDS THREADS: maps, strings and vectors of the C++ library, below recursive templates.
// All blocks come from operator new.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>
#define NOINLINE __attribute__((noinline, noclone, noipa))

struct Random {
    uint64_t state;
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    }
};

// A tree of nodes whose type changes with the depth, so that each level is a function of its own.
template <int DEPTH> struct Node {
    std::string name;
    std::vector<uint32_t> values;
    std::unique_ptr<Node<DEPTH - 1>> left, right;
    NOINLINE Node(Random &random) : name(24 + random.next() % 40, 'n'), values(1 + random.next() % 30) {
        left = std::make_unique<Node<DEPTH - 1>>(random);
        right = std::make_unique<Node<DEPTH - 1>>(random);
    }
    uint64_t sum() const { return name.size() + values.size() + left->sum() + right->sum(); }
};
template <> struct Node<0> {
    std::string name;
    NOINLINE Node(Random &random) : name(16 + random.next() % 100, 'l') {}
    uint64_t sum() const { return name.size(); }
};

using Index = std::map<std::string, std::vector<std::string>>;

static NOINLINE void fill(Index &index, Random &random, int count) {
    for (int i = 0; i < count; i++) {
        std::string key = "key of an entry, number " + std::to_string(random.next() % 2000);
        index[key].push_back("a text that is too long to lie in the string itself " + std::to_string(i));
    }
}

static NOINLINE uint64_t thin(Index &index, Random &random) {
    uint64_t bytes = 0;
    for (auto at = index.begin(); at != index.end();) {
        for (const auto &text : at->second) bytes += text.size();
        if (random.next() % 3 == 0) at = index.erase(at);
        else ++at;
    }
    return bytes;
}

static uint64_t work(int rounds, uint64_t seed) {
    Random random{seed * 0x9e3779b97f4a7c15 | 1};
    Index index;
    uint64_t total = 0;
    for (int round = 0; round < rounds; round++) {
        fill(index, random, 1500);
        total += Node<10>(random).sum();
        total += thin(index, random);
    }
    return total;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100, threads = argc > 2 ? atoi(argv[2]) : 1;
    std::vector<uint64_t> totals(threads);
    std::vector<std::thread> others;
    for (int i = 1; i < threads; i++) others.emplace_back([&, i] { totals[i] = work(rounds / threads, i + 1); });
    totals[0] = work(rounds / threads, 1);
    for (auto &other : others) other.join();
    uint64_t sum = 0;
    for (uint64_t total : totals) sum += total;
    printf("%llu\n", static_cast<unsigned long long>(sum));
}
