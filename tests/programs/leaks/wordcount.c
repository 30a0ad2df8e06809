/* A C module of Python with a leak: `longest(text)` splits a text into words and returns the
 * longest. It frees the list of words, but not the words that `copy_word` made. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

__attribute__((noinline)) static char *copy_word(const char *from, size_t length) {
    char *word = malloc(length + 1);
    if (!word) return NULL;
    memcpy(word, from, length);
    word[length] = 0;
    return word;
}

static PyObject *longest(PyObject *self, PyObject *arguments) {
    const char *text;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "s", &text)) return NULL;
    size_t room = 4, count = 0;
    char **words = malloc(room * sizeof *words);
    while (words && *text) {
        size_t length = strcspn(text, " ");
        if (count == room) {
            char **larger = realloc(words, (room *= 2) * sizeof *words);
            if (!larger) break;
            words = larger;
        }
        if (length) words[count++] = copy_word(text, length);
        text += length + (text[length] == ' ');
    }
    const char *best = "";
    for (size_t i = 0; i < count; i++) {
        if (words[i] && strlen(words[i]) > strlen(best)) best = words[i];
    }
    PyObject *result = PyUnicode_FromString(best);
    free(words);
    return result;
}

static PyMethodDef methods[] = {{"longest", longest, METH_VARARGS, "The longest word."}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "wordcount", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_wordcount(void) { return PyModule_Create(&module); }
