// A pool behind an operator new of the program, one of a class, and an allocator of containers.
#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>
#define NOINLINE __attribute__((noinline))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
namespace pool {
static size_t handed_out;
NOINLINE void *refill(size_t bytes) {
    void *chunk = std::malloc(bytes);
    KEEP_FRAME();
    return chunk;
}
NOINLINE void *take(size_t bytes) {
    handed_out += bytes;
    void *block = refill(bytes);
    KEEP_FRAME();
    return block;
}
template <class T> struct Slab {
    using value_type = T;
    Slab() = default;
    template <class U> Slab(const Slab<U> &) {}
    NOINLINE T *allocate(size_t count) {
        T *block = static_cast<T *>(take(count * sizeof(T)));
        KEEP_FRAME();
        return block;
    }
    void deallocate(T *block, size_t) { std::free(block); }
};
struct Sprite {
    static NOINLINE void *operator new(size_t bytes) {
        void *block = take(bytes);
        KEEP_FRAME();
        return block;
    }
    static void operator delete(void *block) { std::free(block); }
    char pixels[500];
};
} // namespace pool
NOINLINE void *operator new(size_t bytes) {
    void *block = pool::take(bytes);
    KEEP_FRAME();
    return block;
}
void operator delete(void *block) noexcept { std::free(block); }
void operator delete(void *block, size_t) noexcept { std::free(block); }
static void *volatile kept;
NOINLINE void remember() {
    kept = new char[400];
    KEEP_FRAME();
}
NOINLINE void draw() {
    kept = new pool::Sprite;
    KEEP_FRAME();
}
NOINLINE void lay_out() {
    static std::vector<int, pool::Slab<int>> columns;
    columns.reserve(columns.capacity() + 150);
    KEEP_FRAME();
}
NOINLINE void use_the_pool_itself() {
    kept = pool::take(600);
    KEEP_FRAME();
}
NOINLINE void nest() {
    char *outer = static_cast<char *>(std::malloc(100));
    kept = outer;
    char *inner = static_cast<char *>(std::malloc(50));
    kept = inner;
    std::free(inner);
    std::free(outer);
    KEEP_FRAME();
}
int main() {
    for (int round = 0; round < 20; round++) {
        remember();
        draw();
        lay_out();
        use_the_pool_itself();
        nest();
    }
}
