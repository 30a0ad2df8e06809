// Containers, strings, and exceptions through frames of the library: thrown below allocations, by
// operator new, and by a container.
#include <cstdio>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

struct Large { char bytes[300]; };

__attribute__((noinline)) static void descend(int depth)
{
    if (depth == 0)
        throw std::runtime_error("deep");
    auto block = std::make_unique<Large>();
    descend(depth - 1);
}

__attribute__((noinline)) static Large *leaked() { return new Large; }

int main()
{
    std::map<std::string, std::vector<int>> lists;
    for (int i = 0; i < 500; i++)
        lists["key number " + std::to_string(i)].resize(i);
    int caught = 0;
    for (int depth = 0; depth < 20; depth++)
        try { descend(depth); } catch (const std::exception &) { caught++; }
    try { std::vector<char> bytes; bytes.resize(1ul << 62); } catch (const std::exception &) { caught++; }
    try { volatile size_t bytes = 1ul << 60; std::printf("%p\n", (void *)new char[bytes]); } catch (const std::bad_alloc &) { caught++; }
    Large *block = leaked();
    std::printf("%d caught, %zu lists, %d\n", caught, lists.size(), block != nullptr);
}
