/* A library with thread-local variables of its own, copied many times by the test. */
static __thread char own_variable[40];
char *plugin_variable(void) { own_variable[0]++; return own_variable; }
