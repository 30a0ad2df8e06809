// An operator new that jumps into its pool, and so is in no stack. It is called by libstdc++, by a
// factory that jumps to it, and by one in another module. Build with -O2.
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#define NOINLINE __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
namespace arena {
static size_t handed_out;
NOINLINE void *grow(size_t bytes) {
    void *chunk = std::malloc(bytes);
    KEEP_FRAME();
    return chunk;
}
NOINLINE void *take(size_t bytes) {
    handed_out += bytes;
    void *block = grow(bytes);
    KEEP_FRAME();
    return block;
}
} // namespace arena
NOINLINE void *operator new(size_t bytes) { return arena::take(bytes); }
void operator delete(void *block) noexcept { std::free(block); }
void operator delete(void *block, size_t) noexcept { std::free(block); }
// The factory of the library jumps to the one that it is given by name, here.
extern "C" void *make_part(size_t bytes);
extern "C" void *forge_part(size_t bytes) { return arena::take(bytes); }
static void *volatile kept;
NOINLINE void *make_widget() { return operator new(700); }
NOINLINE void title_page(std::string &title) {
    title.append(3000, 'x'); // libstdc++ allocates
    KEEP_FRAME();
}
NOINLINE void open_window() {
    kept = make_widget();
    KEEP_FRAME();
}
NOINLINE void order_part() {
    kept = make_part(900);
    KEEP_FRAME();
}
int main() {
    for (int count = 0; count < 20; count++) {
        title_page(*new (std::malloc(sizeof(std::string))) std::string("title"));
        open_window();
        order_part();
    }
}
