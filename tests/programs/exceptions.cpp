// Throws 3,000 exceptions through frames that allocate: from depths 0 to 30, rethrown, and from
// constructors. All blocks are freed.
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>
#define NOINLINE __attribute__((noinline, noipa))
struct Holds { std::vector<std::string> v; Holds() : v(3, std::string(40, 'x')) {} };
NOINLINE int dives(int depth, int i) {
    Holds holds;
    if (depth == 0) throw std::runtime_error("from the bottom " + std::to_string(i));
    try { return dives(depth - 1, i) + int(holds.v.size()); } catch (const std::runtime_error &) { if (depth % 7 == 3) throw; else throw std::logic_error("translated"); }
    catch (const std::logic_error &e) { if (depth % 2) throw; throw std::runtime_error(e.what()); }
}
struct Fails { std::unique_ptr<int> p{new int(1)}; Fails() { throw 7; } };
int main() {
    int caught = 0;
    for (int i = 0; i < 3000; i++) {
        try { dives(i % 31, i); } catch (const std::exception &) { caught++; }
        try { delete new Fails; } catch (int) { caught++; }
    }
    char text[40];
    int n = snprintf(text, sizeof text, "%d\n", caught);
    return write(1, text, n) == n ? 0 : 1;
}
