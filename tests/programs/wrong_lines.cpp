// Growth that is easily blamed on the wrong line: functions that end in a jump, a library of the system, several lines of one
// function, and names that are longer than a line.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unistd.h>
#define ALONE __attribute__((noinline, noipa))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
extern "C" int deflateInit_(void *stream, int level, const char *version, int size);
static void *volatile kept;

ALONE void *make_widget() { return operator new(700); }
ALONE void *make_gadget() { return operator new(900); }
ALONE void *allocate_node(size_t bytes) { return malloc(bytes); }
ALONE void *make_node() { return allocate_node(320); }
ALONE void *small_part(size_t bytes) { return calloc(1, bytes); }
ALONE void *large_part(size_t bytes) { return calloc(2, bytes); }
ALONE void *make_part(size_t bytes) {
    if (bytes < 64) return small_part(bytes);
    return large_part(bytes);
}
struct Shape {
    virtual void *make(size_t bytes) = 0;
};
struct Circle : Shape {
    ALONE void *make(size_t bytes) override {
        void *block = malloc(bytes);
        KEEP_FRAME();
        return block;
    }
};
ALONE void *make_shape(Shape *shape) { return shape->make(1100); }
ALONE void *make_plain() {
    void *block = malloc(1200);
    KEEP_FRAME();
    return block;
}
ALONE int compress_orders() {
    char stream[112];
    memset(stream, 0, sizeof stream);
    int failed = deflateInit_(stream, 6, "1.2.11", sizeof stream);
    KEEP_FRAME();
    return failed;
}
ALONE void handle(size_t round) {
    kept = malloc(1000 + round % 3); // the session
    kept = malloc(2000 + round % 5); // the request
    kept = malloc(3000 + round % 7); // the history
    KEEP_FRAME();
}
namespace a_company_with_a_long_name::infrastructure::messaging::internal::detail {
template <class Key, class Value> struct BidirectionalConcurrentContainer {
    static ALONE void insert_with_rehash(size_t bytes) {
        kept = malloc(bytes);
        KEEP_FRAME();
    }
};
} // namespace a_company_with_a_long_name::infrastructure::messaging::internal::detail
using Table = a_company_with_a_long_name::infrastructure::messaging::internal::detail::BidirectionalConcurrentContainer<
    a_company_with_a_long_name::infrastructure::messaging::internal::detail::BidirectionalConcurrentContainer<int, long>, char>;
int main(int count, char **values) {
    const char *what = count > 1 ? values[1] : "all";
    auto is = [&](const char *name) { return !strcmp(what, "all") || !strcmp(what, name); };
    static Circle circle;
    Shape *volatile shape = &circle;
    for (size_t round = 0; round < 60; round++) {
        if (is("jumps")) {
            kept = make_widget();
            kept = make_gadget();
            kept = make_node();
            kept = make_part(round);
            kept = make_shape(shape);
            kept = make_plain();
        }
        if (is("library") && compress_orders()) return 1;
        if (is("lines")) handle(round);
        if (is("names")) Table::insert_with_rehash(5000);
        usleep(count > 2 ? atoi(values[2]) : 20000);
    }
}
