// As plugin_operators.cpp, with the run-time's operators.
#include <new>
#include <cstddef>
extern "C" __attribute__((noinline)) void *c_takes(unsigned size) { return operator new(size); }
extern "C" __attribute__((noinline)) void c_gives(void *block) { operator delete(block); }
extern "C" __attribute__((noinline)) void *c_takes_many(unsigned size) { return operator new[](size); }
extern "C" __attribute__((noinline)) void c_gives_many(void *block) { operator delete[](block); }
