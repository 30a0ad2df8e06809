// A C++ library for a C program: its operators are found although the program has none.
extern "C" __attribute__((noinline, noipa)) void *plugin_takes(unsigned n) { char *p = new char[n]; __asm__ volatile("" ::: "memory"); return p; }
extern "C" void plugin_gives(void *p) { delete[] static_cast<char *>(p); }
