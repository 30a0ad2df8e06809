#!/bin/sh
# Builds program, the image of the profiles in this folder. Its debug information names the source as the tests find it.
cc -O1 -g1 -gdwarf-4 -nostdlib -static -fcf-protection=none -fno-asynchronous-unwind-tables -fno-stack-protector \
    -ffile-prefix-map="$PWD=../tests/golden/dcpi/views" \
    -Wl,--build-id=0xb1d0cafe00112233445566778899aabbccddeeff -Wl,-z,norelro,-z,noseparate-code -o program program.c
objcopy --remove-section=.comment program
