/* Reads the headers of safetensors files, and 1,999 damaged copies of each, and prints what it finds.  test_browser.sh
 * compares the output of two programs: one with jansson and one with its replacement in a browser. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/safetensors.h"

static unsigned long long state = 1;
static unsigned below(unsigned n) { return (unsigned)((state = state * 6364136223846793005ull + 1) >> 33) % n; }

/* Overwrites one to three places of the header with parts of JSON or with bytes that are not valid JSON. */
static void damage(char *bytes, size_t size) {
    static const char *const parts[] = {"{", "}", "[", "]", ",", ":", "\"", "\\", "\\u00e9", "\\ud83d\\ude00",
                                        "\\ud800", "1e5", "-", "0", "true", "null", "\xc3\xa9", "\xff", "1.5",
                                        "99999999999999999999"};
    uint64_t length;
    memcpy(&length, bytes, sizeof length);
    size_t header = length < size - 8 ? 8 + (size_t)length : size;
    for (unsigned i = below(3) + 1; i; i--) {
        const char *part = parts[below(sizeof parts / sizeof *parts)];
        size_t at = 8 + below((unsigned)header - 8);
        if (at + strlen(part) < size) memcpy(bytes + at, part, strlen(part));
    }
}

int main(int argc, char **argv) {
    for (int f = 1; f < argc; f++) {
        static char bytes[1 << 20], copy[1 << 20];
        FILE *in = fopen(argv[f], "rb");
        size_t size = in ? fread(bytes, 1, sizeof bytes, in) : 0;
        if (size < 9) return 1;
        fclose(in);
        for (int round = 0; round < 2000; round++) {
            SafeTensors st;
            Error error;
            memcpy(copy, bytes, size);
            if (round) damage(copy, size);
            bool ok = safetensors_parse(&st, copy, size, "x", &error);
            printf("%d %d %d", f, round, ok);
            for (int i = 0; ok && i < st.count; i++) printf(" %s/%zu", st.tensors[i].name, st.tensors[i].bytes);
            const char *text = ok ? safetensors_metadata(&st, "config") : error.text;
            if (!ok && strstr(text, "not JSON")) text = ""; /* the rest is the JSON library's own message */
            printf(" %s\n", text ? text : "none");
            if (ok) safetensors_close(&st);
        }
    }
}
