-- Pairs of malloc and free in a loop that the compiler of LuaJIT turns into code without unwind data.
local ffi = require("ffi")
ffi.cdef("void *malloc(size_t); void free(void *);")
for pair = 1, tonumber(arg[1]) do
    ffi.C.free(ffi.C.malloc(pair % 100 + 1))
end
