// The plugins of harm_steps, by KIND: 0 allocates with C functions; 1 uses C++; 2 and 3 have
// their own operators over an arena, and abort when they get a block of another allocator.
#include <cstdlib>
#include <cstring>
#if KIND == 1
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>
struct Held { std::string text; Held() : text(100, 'h') {} ~Held() { text.clear(); } };
static thread_local Held held;
__attribute__((noinline)) static void throws(int depth) {
    std::string kept(200, 'k');
    if (depth == 0) throw std::runtime_error(kept);
    throws(depth - 1);
}
struct alignas(256) Wide { char bytes[512]; };
extern "C" long plugin_call(long kind, long count) {
    long sum = 0;
    for (long i = 0; i < count; i++) switch (kind) {
        case 0: { long *one = new long(i); sum += *one; delete one; break; }
        case 1: { char *many = new char[100 + i]; many[99] = 1; sum += many[99]; delete[] many; break; }
        case 2: sum += ::operator new(size_t(1) << 62, std::nothrow) == nullptr; break;
        case 3: try { sum += ::operator new(size_t(1) << 62) != nullptr; } catch (const std::bad_alloc &) { sum += 2; } break;
        case 4: { Wide *wide = new Wide; sum += reinterpret_cast<size_t>(wide) % 256; delete wide; break; }
        case 5: { std::map<int, std::vector<std::string>> map; for (int k = 0; k < 10; k++) map[k % 3].push_back(std::string(20 + k, 'x')); sum += map.size(); break; }
        case 6: try { throws(int(i % 7)); } catch (const std::exception &caught) { sum += strlen(caught.what()); } break;
        case 7: ::operator delete(::operator new(64), size_t(64)); ::operator delete[](::operator new[](64, std::nothrow), std::nothrow); sum++; break;
        default: sum += held.text.size();
    }
    return sum;
}
#elif KIND >= 2
#include <new>
static char arena[1 << 16] __attribute__((aligned(16)));
static size_t used;
void *operator new(size_t size) {
    if (used + size + 16 > sizeof arena) used = 0;
    void *block = arena + used;
    used += (size + 15) / 16 * 16;
    return block;
}
void operator delete(void *block) noexcept {
    if (block && (static_cast<char *>(block) < arena || static_cast<char *>(block) >= arena + sizeof arena)) abort();
}
void operator delete(void *block, size_t) noexcept { operator delete(block); }
// With brackets too. Those of the run-time call the operators of the library that loaded it. With
// heaptape they would call those that are found for each caller.
void *operator new[](size_t size) { return operator new(size); }
void operator delete[](void *block) noexcept { operator delete(block); }
void operator delete[](void *block, size_t) noexcept { operator delete(block); }
extern "C" long plugin_call(long kind, long count) {
    for (long i = 0; i < count; i++) {
        if (kind % 2) ::operator delete[](::operator new[](64)); else ::operator delete(::operator new(64));
    }
    return used >= 64;
}
#else
static thread_local char own[300];
extern "C" long plugin_call(long kind, long count) {
    long sum = 0;
    for (long i = 0; i < count; i++) {
        char *block = static_cast<char *>(kind % 2 ? calloc(3, 40) : malloc(120));
        block[100] = own[i % 300] = 1;
        sum += block[100];
        free(block);
    }
    return sum;
}
#endif
