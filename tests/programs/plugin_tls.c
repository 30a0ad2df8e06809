/* A library with thread-local variables, which the test copies many times. */
static __thread char own_variable[40];
char *plugin_variable(void) { own_variable[0]++; return own_variable; }
