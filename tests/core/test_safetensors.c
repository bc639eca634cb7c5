/* The safetensors reader rejects each kind of damage with a message of its own, a failing writer leaves the previous
 * file unchanged, and tensors are the same after writing and reading. */
#include "core/safetensors.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "training/checkpoint.h"
#include "tests/check.h"
#include "tests/scratch.h"

static Error error;

/* A file in memory: the header without padding, and `data` zero bytes. */
static char *make_file(const char *header, size_t data, size_t *size) {
    uint64_t length = strlen(header);
    *size = 8 + length + data;
    char *bytes = calloc(*size, 1);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    return bytes;
}

/* == Damage ===================================================================================================== */

#define A(offsets) "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}"
#define B(offsets) "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":" offsets "}"
#define T(dtype, shape, offsets) "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_damaged_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *error;
    } cases[] = {
        {"", 0, "x: the header is not a JSON object"},
        {"[]", 0, "x: the header is not a JSON object"},
        {" {}", 0, "x: the header is not a JSON object"},
        {"{\"a\":", 0, "x: the header is not JSON (near its byte "},
        {"{\"a\" 1}", 0, "x: the header is not JSON (near its byte "},
        {"{} {}", 0, "x: byte 3 of the header is not part of its JSON object"},
        {"{}\n", 0, "x: byte 2 of the header is not part of its JSON object"},
        {"{\"a\":1}", 0, "x: a: expected an object"},
        {"{" A("[0,8]") "," A("[8,16]") "}", 16, "x: the header is not JSON (near its byte 57): duplicate "},
        {"{" A("[0,8]") "," B("[8,11]") "}", 12,
         "x: the tensors end at 11, the data at 12: bytes that belong to no tensor"},
        {"{" A("[0,8]") "," B("[7,10]") "}", 10, "x: b: its data begins at 7, inside of a, which ends at 8"},
        {"{" A("[0,8]") "," B("[5,8]") "}", 8, "x: b: its data begins at 5, inside of a, which ends at 8"},
        {"{" B("[0,3]") "," A("[4,12]") "}", 12, "x: a: its data begins at 4 and leaves a hole after 3"},
        {"{" A("[4,12]") "}", 12, "x: a: its data begins at 4 and leaves a hole after 0"},
        {"{" A("[0,8]") "}", 7, "x: a: data_offsets [0, 8] are outside of the 7 bytes of data"},
        {"{" A("[8,0]") "}", 8, "x: a: data_offsets [8, 0] are outside of the 8 bytes of data"},
        {"{" A("[0,7]") "}", 7, "x: a: data_offsets [0, 7] hold 7 bytes, shape and dtype ask for 8"},
        {"{" A("[0]") "}", 8, "x: a: data_offsets are not two integers from 0 to 2^53 - 1"},
        {"{" A("[0,4,8]") "}", 8, "x: a: data_offsets are not two integers from 0 to 2^53 - 1"},
        {"{" A("[0,8.5]") "}", 8, "x: a: data_offsets are not two integers from 0 to 2^53 - 1"},
        {"{" A("[0,\"8\"]") "}", 8, "x: a: data_offsets are not two integers from 0 to 2^53 - 1"},
        {"{" A("[-8,0]") "}", 8, "x: a: data_offsets are not two integers from 0 to 2^53 - 1"},
        {"{" A("[0,9007199254740993]") "}", 8, "x: a: data_offsets are not two integers from 0 to 2^53 - 1"},
        {"{" A("[0,1e400]") "}", 8, "x: the header is not JSON (near its byte 55): real number "},
        {T("\"F33\"", "[2]", "[0,8]"), 8, "x: a: unknown dtype 'F33'"},
        {T("\"f32\"", "[2]", "[0,8]"), 8, "x: a: unknown dtype 'f32'"},
        {T("4", "[2]", "[0,8]"), 8, "x: a: dtype is missing or not a string"},
        {T("\"F32\"", "2", "[0,8]"), 8, "x: a: shape is missing or not a list"},
        {T("\"F32\"", "[-2]", "[0,8]"), 8, "x: a: shape[0] is not an integer from 0 to 2^53 - 1"},
        {T("\"F32\"", "[1,1.5]", "[0,8]"), 8, "x: a: shape[1] is not an integer from 0 to 2^53 - 1"},
        {T("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "x: a: the product of the shape overflows"},
        {T("\"F64\"", "[2147483648,1073741824]", "[0,0]"), 0, "x: a: the size in bytes overflows"},
        {T("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "x: a: shape has more than 8 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "x: a: data_offsets are not two integers from 0 to 2^53 - 1"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "x: the header is not JSON (near its byte 27): duplicate "},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, "x: a: unknown field 'x'"},
        {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "x: a name or text contains a NUL byte"},
        {"{\"a\001\":1}", 0, "x: the header is not JSON (near its byte 3): control character 0x1 "},
        {"{\"a\n\":1}", 0, "x: the header is not JSON (near its byte 3): unexpected newline "},
        {"{\"a\xff\":1}", 0, "x: the header is not JSON (near its byte 3): unable to decode byte "},
        {"{\"a\xc0\x80\":1}", 0, "x: the header is not JSON (near its byte 3): unable to decode byte "},
        {"{\"a\xed\xa0\x80\":1}", 0, "x: the header is not JSON (near its byte 3): unable to decode byte "},
        {"{\"\\u001b[2J\":1}", 0, "x: ?[2J: expected an object"},
        {"{\"__metadata__\":1}", 0, "x: __metadata__ is not an object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "x: __metadata__: k: the value is not a string"},
        {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}}", 0, "x: the header is not JSON (near its byte 28): duplicate "},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "x: the header is not JSON (near its byte 33): duplicate "},
        {"{}", 1, "x: the tensors end at 0, the data at 1: bytes that belong to no tensor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SafeTensors st;
        size_t size;
        char *bytes = make_file(cases[i].header, cases[i].data, &size);
        assert_false(safetensors_parse(&st, bytes, size, "x", &error));
        size_t length = strlen(cases[i].error); /* after a final space, the rest is the JSON library's message */
        if (cases[i].error[length - 1] == ' ') error.text[length] = 0;
        assert_string_equal(error.text, cases[i].error);
        assert_null(st.tensors);
        free(bytes);
    }
}

static void test_damaged_lengths(void **state) {
    (void)state;
    SafeTensors st;
    size_t size;
    char *bytes = make_file("{" A("[0,8]") "}", 8, &size);
    assert_true(safetensors_parse(&st, bytes, size, "x", &error));
    safetensors_close(&st);
    for (size_t cut = 0; cut < size; cut++) assert_false(safetensors_parse(&st, bytes, cut, "x", &error));
    assert_false(safetensors_parse(&st, bytes, 7, "x", &error));
    assert_string_equal(error.text, "x: 7 bytes are too short for a safetensors file");
    static const uint64_t lengths[] = {100000001, UINT64_MAX, UINT64_MAX - 7, 1ull << 63};
    for (int i = 0; i < 4; i++) {
        memcpy(bytes, &lengths[i], 8);
        assert_false(safetensors_parse(&st, bytes, size, "x", &error));
        assert_non_null(strstr(error.text, "not safetensors, or cut short"));
    }
    free(bytes);
}

/* Property: a NUL byte anywhere in the header is refused. */
static void test_nul_in_header(void **state) {
    (void)state;
    SafeTensors st;
    size_t size;
    char *bytes = make_file("{" A("[0,8]") "}", 8, &size);
    for (size_t i = 8; i < size - 8; i++) {
        char saved = bytes[i];
        bytes[i] = 0;
        assert_false(safetensors_parse(&st, bytes, size, "x", &error));
        bytes[i] = saved;
    }
    free(bytes);
}

static void test_valid_corners(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        int count;
    } cases[] = {
        {"{}", 0, 0},
        {"{}      ", 0, 0},
        {"{\"__metadata__\":{\"a\":\"b\"}}", 0, 0},
        {T("\"F32\"", "[]", "[0,4]"), 4, 1},
        {T("\"F32\"", "[0]", "[0,0]"), 0, 1},
        {T("\"F32\"", "[3,0,4503599627370496]", "[0,0]"), 0, 1},
        {"{" B("[8,11]") "," A("[0,8]") "}", 11, 2},
        {"{\"e\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[8,8]}," A("[0,8]") "," B("[8,11]") "}", 11, 3},
        {T("\"U8\"", "[1,1,1,1,1,1,1,1]", "[0,1]"), 1, 1},
        {"{\"\\\\u0000\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SafeTensors st;
        size_t size;
        char *bytes = make_file(cases[i].header, cases[i].data, &size);
        if (!safetensors_parse(&st, bytes, size, "x", &error)) fail_msg("%s", error.text);
        assert_int_equal(st.count, cases[i].count);
        for (int k = 0; k < st.count; k++) assert_ptr_equal(safetensors_find(&st, st.tensors[k].name), &st.tensors[k]);
        assert_null(safetensors_find(&st, "no such"));
        assert_null(safetensors_metadata(&st, "no such"));
        safetensors_close(&st);
        free(bytes);
    }
}

static void test_open_errors(void **state) {
    (void)state;
    SafeTensors st;
    assert_false(safetensors_open(&st, "/nonexistent", &error));
    assert_string_equal(error.text, "/nonexistent: cannot open: No such file or directory");
    assert_false(safetensors_open(&st, "/", &error));
    assert_string_equal(error.text, "/: a folder, expected a file");
    assert_false(safetensors_open(&st, "/dev/zero", &error));
    assert_string_equal(error.text, "/dev/zero: not a regular file, expected a file");
    FILE *out = fopen(in_folder("empty"), "w");
    fclose(out);
    assert_false(safetensors_open(&st, in_folder("empty"), &error));
    assert_non_null(strstr(error.text, ": 0 bytes are too short for a safetensors file"));
    safetensors_close(&st);
}

/* == Values ===================================================================================================== */

static void test_round_trip(void **state) {
    (void)state;
    enum { N = 7 * 9 };
    float *x = check_normal(N, 1, 0), back[N];
    int64_t wide[3] = {INT64_MIN, 0, INT64_MAX}, wide_back[3];
    int8_t small[5] = {-128, -1, 0, 1, 127};
    int64_t small_back[5];
    float scalar = 2.5f, nothing;
    x[0] = NAN;
    x[1] = -INFINITY;
    x[2] = 1e-45f;
    const SafeTensorEntry entries[] = {
        {"small", SAFE_I8, 1, {5}, small},
        {"x \"quoted\" \xc3\xa9", SAFE_F32, 2, {7, 9}, x},
        {"scalar", SAFE_F32, 0, {0}, &scalar},
        {"wide", SAFE_I64, 1, {3}, wide},
        {"nothing", SAFE_F32, 2, {4, 0}, NULL},
    };
    const SafeMetadata metadata[] = {{"config", "lr = 1e-3\n[model]\n"}, {"empty", ""}, {"k\"", "\\u0000 \t"}};
    if (!safetensors_write(in_folder("r"), entries, 5, metadata, 3, &error)) fail_msg("%s", error.text);
    SafeTensors st;
    if (!safetensors_open(&st, in_folder("r"), &error)) fail_msg("%s", error.text);
    static const char *const order[] = {"wide", "x \"quoted\" \xc3\xa9", "scalar", "nothing", "small"};
    assert_int_equal(st.count, 5);
    for (int i = 0; i < 5; i++) {
        const SafeTensor *t = safetensors_find(&st, order[i]);
        assert_non_null(t);
        assert_int_equal((uintptr_t)t->data % (t->size ? t->bytes / t->size : 1), 0);
        assert_true(i == 0 || t->data >= safetensors_find(&st, order[i - 1])->data);
    }
    const SafeTensor *t = safetensors_find(&st, order[1]);
    assert_true(t->ndim == 2 && t->shape[0] == 7 && t->shape[1] == 9 && t->size == N && t->dtype == SAFE_F32);
    assert_true(safetensors_to_float(t, back, &error));
    assert_memory_equal(x, back, sizeof back);
    assert_true(safetensors_to_float(safetensors_find(&st, "scalar"), back, &error) && back[0] == 2.5f);
    assert_int_equal(safetensors_find(&st, "scalar")->ndim, 0);
    assert_true(safetensors_to_float(safetensors_find(&st, "nothing"), &nothing, &error));
    assert_true(safetensors_to_int64(safetensors_find(&st, "wide"), wide_back, &error));
    assert_memory_equal(wide, wide_back, sizeof wide);
    assert_true(safetensors_to_int64(safetensors_find(&st, "small"), small_back, &error));
    for (int i = 0; i < 5; i++) assert_int_equal(small[i], small_back[i]);
    for (int i = 0; i < 3; i++) assert_string_equal(safetensors_metadata(&st, metadata[i].key), metadata[i].value);
    assert_false(safetensors_to_float(safetensors_find(&st, "wide"), back, &error));
    assert_non_null(strstr(error.text, "/r: wide: expected F32, F16, BF16 or F64, got I64"));
    assert_false(safetensors_to_int64(safetensors_find(&st, "scalar"), wide_back, &error));
    assert_non_null(strstr(error.text, "/r: scalar: expected I64, I32, I16, I8 or U8, got F32"));
    safetensors_close(&st);
    free(x);
}

/* A tensor of `size` elements at an odd address. */
static SafeTensor odd_tensor(SafeDtype dtype, const void *data, size_t size, size_t bytes, char *buffer) {
    memcpy(buffer + 1, data, bytes);
    return (SafeTensor){.name = "t", .file = "x", .dtype = dtype, .size = size, .bytes = bytes, .data = buffer + 1};
}

static void test_integers(void **state) {
    (void)state;
    char buffer[64];
    int64_t out[3];
    const int32_t words[] = {INT32_MIN, -1, INT32_MAX};
    const int16_t halves[] = {INT16_MIN, -1, INT16_MAX};
    const uint8_t bytes[] = {0, 128, 255};
    SafeTensor t = odd_tensor(SAFE_I32, words, 3, sizeof words, buffer);
    assert_true(safetensors_to_int64(&t, out, &error));
    for (int i = 0; i < 3; i++) assert_int_equal(out[i], words[i]);
    t = odd_tensor(SAFE_I16, halves, 3, sizeof halves, buffer);
    assert_true(safetensors_to_int64(&t, out, &error));
    for (int i = 0; i < 3; i++) assert_int_equal(out[i], halves[i]);
    t = odd_tensor(SAFE_U8, bytes, 3, sizeof bytes, buffer);
    assert_true(safetensors_to_int64(&t, out, &error));
    for (int i = 0; i < 3; i++) assert_int_equal(out[i], bytes[i]);
}

/* Compares every float16 with the definition: (-1)^s 2^(e-15) (1 + f/1024), or 2^-14 f/1024 if it is subnormal. */
static void test_float_formats(void **state) {
    (void)state;
    static uint16_t halves[65536];
    static float out[65536];
    static char buffer[sizeof halves + 1];
    for (int i = 0; i < 65536; i++) halves[i] = (uint16_t)i;
    SafeTensor t = odd_tensor(SAFE_F16, halves, 65536, sizeof halves, buffer);
    assert_true(safetensors_to_float(&t, out, &error));
    for (int i = 0; i < 65536; i++) {
        int exponent = i >> 10 & 31, fraction = i & 1023;
        double want = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
        if (exponent == 31) want = fraction ? NAN : INFINITY;
        assert_true(isnan(want) ? isnan(out[i]) : out[i] == (float)(i & 0x8000 ? -want : want));
        assert_int_equal(!!signbit(out[i]), i >> 15);
    }
    t = odd_tensor(SAFE_BF16, halves, 65536, sizeof halves, buffer);
    assert_true(safetensors_to_float(&t, out, &error));
    for (int i = 0; i < 65536; i++) {
        uint32_t bits;
        memcpy(&bits, &out[i], 4);
        assert_int_equal(bits, (uint32_t)i << 16);
    }
    const double doubles[] = {0.1, -1e300, 1.0 / 3};
    t = odd_tensor(SAFE_F64, doubles, 3, sizeof doubles, buffer);
    assert_true(safetensors_to_float(&t, out, &error));
    assert_true(out[0] == 0.1f && out[1] == -INFINITY && out[2] == 1.0f / 3);
}

/* == Writing that fails ========================================================================================= */

static int files_in_folder(void) {
    DIR *dir = opendir(folder);
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void assert_holds(const char *path, float value) {
    SafeTensors st;
    float back;
    if (!safetensors_open(&st, path, &error)) fail_msg("%s", error.text);
    assert_true(safetensors_to_float(safetensors_find(&st, "x"), &back, &error) && back == value);
    safetensors_close(&st);
}

static void test_failed_write_keeps_the_old_file(void **state) {
    (void)state;
    enum { N = 1 << 16 };
    float value = 1, *big = check_normal(N, 1, 1);
    const SafeTensorEntry small_entry = {"x", SAFE_F32, 1, {1}, &value}, big_entry = {"x", SAFE_F32, 1, {N}, big};
    const char *path = in_folder("keep");
    if (!safetensors_write(path, &small_entry, 1, NULL, 0, &error)) fail_msg("%s", error.text);
    int before = files_in_folder();
    struct rlimit old, low;
    getrlimit(RLIMIT_FSIZE, &old);
    low = (struct rlimit){10000, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &low);
    bool ok = safetensors_write(path, &big_entry, 1, NULL, 0, &error);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    assert_false(ok);
    assert_non_null(strstr(error.text, "keep: cannot write: File too large"));
    assert_int_equal(files_in_folder(), before);
    assert_holds(path, 1);

    assert_true(safetensors_write(path, &big_entry, 1, NULL, 0, &error));
    SafeTensors open_before;
    assert_true(safetensors_open(&open_before, path, &error));
    assert_true(safetensors_write(path, &small_entry, 1, NULL, 0, &error));
    assert_memory_equal(safetensors_find(&open_before, "x")->data, big, N * sizeof *big);
    safetensors_close(&open_before);
    assert_holds(path, 1);
    assert_int_equal(files_in_folder(), before);
    free(big);
}

static void test_write_errors(void **state) {
    (void)state;
    float value = 1;
    const SafeTensorEntry entry = {"x", SAFE_F32, 1, {1}, &value};
    assert_false(safetensors_write("/nonexistent/x", &entry, 1, NULL, 0, &error));
    assert_string_equal(error.text, "/nonexistent/x: cannot open its folder: No such file or directory");
    mkdir(in_folder("folder"), 0777);
    assert_false(safetensors_write(in_folder("folder"), &entry, 1, NULL, 0, &error));
    assert_non_null(strstr(error.text, "folder: cannot write: a folder"));
    if (geteuid() != 0) {
        chmod(in_folder("folder"), 0555);
        assert_false(safetensors_write(in_folder("folder/x"), &entry, 1, NULL, 0, &error));
        assert_non_null(strstr(error.text, ": Permission denied"));
        chmod(in_folder("folder"), 0777);
    }
    assert_false(safetensors_write("/proc/x", &entry, 1, NULL, 0, &error));
    assert_non_null(strstr(error.text, "/proc/x: cannot write: "));

    const SafeTensorEntry twice[] = {entry, entry};
    const SafeMetadata same[] = {{"k", "1"}, {"k", "2"}}, latin = {"k", "\xe9"};
    const SafeTensorEntry reserved = {"__metadata__", SAFE_F32, 1, {1}, &value}, deep = {"x", SAFE_F32, 9, {1}, &value},
                          huge = {"x", SAFE_F32, 2, {1ull << 40, 1ull << 40}, &value},
                          wide = {"x", SAFE_F32, 2, {0, 1ull << 60}, &value};
    int before = files_in_folder();
    assert_false(safetensors_write(in_folder("w"), twice, 2, NULL, 0, &error));
    assert_non_null(strstr(error.text, "/w: x: the name occurs twice"));
    assert_false(safetensors_write(in_folder("w"), &entry, 1, same, 2, &error));
    assert_non_null(strstr(error.text, "/w: k: the name occurs twice"));
    assert_false(safetensors_write(in_folder("w"), &entry, 1, &latin, 1, &error));
    assert_non_null(strstr(error.text, "/w: k: the name or its text is not UTF-8"));
    assert_false(safetensors_write(in_folder("w"), &reserved, 1, NULL, 0, &error));
    assert_non_null(strstr(error.text, "/w: __metadata__: the name is reserved"));
    assert_false(safetensors_write(in_folder("w"), &deep, 1, NULL, 0, &error));
    assert_non_null(strstr(error.text, "/w: x: 9 dimensions (at most 8)"));
    assert_false(safetensors_write(in_folder("w"), &huge, 1, NULL, 0, &error));
    assert_non_null(strstr(error.text, "/w: x: the size in bytes overflows"));
    assert_false(safetensors_write(in_folder("w"), &wide, 1, NULL, 0, &error));
    assert_int_equal(files_in_folder(), before);
}

/* The bytes of a small file are those that the format's description requires. */
static void test_written_bytes(void **state) {
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"x\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}}";
    float x[2] = {1, -2};
    const SafeTensorEntry entry = {"x", SAFE_F32, 2, {2, 1}, x};
    const SafeMetadata metadata = {"k", "v"};
    char want[256] = {(sizeof header - 1 + 7) / 8 * 8}, got[257];
    size_t size = 8 + (size_t)want[0];
    memset(want + 8, ' ', size - 8);
    memcpy(want + 8, header, sizeof header - 1);
    memcpy(want + size, x, sizeof x);
    assert_true(safetensors_write(in_folder("b"), &entry, 1, &metadata, 1, &error));
    FILE *in = fopen(in_folder("b"), "rb");
    assert_int_equal(fread(got, 1, sizeof got, in), size + sizeof x);
    fclose(in);
    assert_memory_equal(got, want, size + sizeof x);
}

/* == The position in a run ======================================================================================== */

static void load_state(void *path) {
    Params params = {0};
    RunState state = {.columns = {{.name = "jsd"}, {.name = "focal"}}, .column_count = 2};
    const LogColumn *c = state.columns;
    checkpoint_load_state(&params, &state, path);
    bool there = c[0].sum == 0.5 && c[0].count == 4 && c[1].count == 0;
    _exit(state.step == 7 && state.epoch == 1 && state.batch == 2 && there ? 78 : 79);
}

static void test_places_in_a_run(void **state) {
    (void)state;
    static const struct {
        const char *run;
        bool taken;
    } cases[] = {
        {"7 1 2 0.5 64 -1 99 0.001 2.5", true},
        {"7 1 2 0.5 64 -1 99 0.001 2.5 50 nan nan nan", true}, /* older versions wrote four more numbers or one more */
        {"7 1 2 0.5 64 -1 99 0.001 2.5 50", true},
        {"7 1 2 0.5 64 -1 99 0.001 2.5 50 nan nan nan 1", false},
        {"7 1 2 0.5 64 -1 99 0.001 2.5 50 nan nan nanx", false},
        {"7 1 2 0.5 64 -1 99 0.001 2.5 50 nan", false},
        {"7 1 2 0.5 64 -1 99 0.001 2.5x", false},
        {"7 1 2 0.5 64 -1 99 0.001", false},
        {"-7 1 2 0.5 64 -1 99 0.001 2.5 50 nan nan nan", false},
        {"7 2147483647 2 0.5 64 -1 99 0.001 2.5 50 nan nan nan", false},
        {"7 1 99999999999999999999 0.5 64 -1 99 0.001 2.5 50 nan nan nan", false},
        {"seven", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512], path[512];
        const SafeMetadata metadata[] = {{"vit.c.run", cases[i].run}, {"vit.c.log", "jsd2 7 7\njsd 0.5 4\n"}};
        snprintf(path, sizeof path, "%s", in_folder("state"));
        if (!safetensors_write(path, NULL, 0, metadata, 2, &error)) fail_msg("%s", error.text);
        int status = status_of(load_state, path, text, sizeof text);
        if (status != (cases[i].taken ? 78 : 1)) fail_msg("'%s': status %d, %s", cases[i].run, status, text);
        if (!cases[i].taken) assert_words(text, WORDS("vit.c.run is '", "which is not a position in a run"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damaged_headers),
        cmocka_unit_test(test_damaged_lengths),
        cmocka_unit_test(test_nul_in_header),
        cmocka_unit_test(test_valid_corners),
        cmocka_unit_test(test_open_errors),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_float_formats),
        cmocka_unit_test(test_failed_write_keeps_the_old_file),
        cmocka_unit_test(test_write_errors),
        cmocka_unit_test(test_written_bytes),
        cmocka_unit_test(test_places_in_a_run),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
