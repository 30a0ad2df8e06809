// A class template that allocates in its constructor and in a member template. With `chain` the
// program executes itself again, so that one pid runs several programs.
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#define SITE __attribute__((noinline))

namespace shop {
template <typename Key, typename Value> struct LruCache {
    void *volatile room;
    SITE explicit LruCache(std::size_t size) : room(std::malloc(size)) {}
    template <typename Make> SITE void *get_or_make(Key key, Make make) { return std::malloc(make(key)); }
};
} // namespace shop

static void *volatile kept;

int main(int argc, char **argv) {
    if (argc > 1 && !std::strcmp(argv[1], "chain")) execl(argv[0], argv[0], "end", static_cast<char *>(nullptr));
    shop::LruCache<int, long> cache(1000);
    for (int i = 0; i < 50; i++) kept = cache.get_or_make(i, [](int key) { return static_cast<std::size_t>(200 + key); });
    return 0;
}
