#include "kernels/device/onednn.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

#include "kernels/device/device.h"
#include "kernels/device/library.h"
#include "kernels/device/workspace.h"

static dnnl_engine_t engine;
static dnnl_stream_t stream;

/* == One engine and one stream ==================================================================================== */

dnnl_engine_t onednn_engine(void) {
    if (!engine) {
        dnnl_engine_t created;
        DNNL_TRY(dnnl_engine_create(&created, dnnl_cpu, 0));
        DNNL_TRY(dnnl_stream_create(&stream, created, dnnl_stream_default_flags));
        engine = created; /* only with its stream */
    }
    return engine;
}

dnnl_stream_t onednn_stream(void) { return onednn_engine(), stream; }

dnnl_memory_t onednn_memory(DescRef d) {
    dnnl_memory_t memory;
    DNNL_TRY(dnnl_memory_create(&memory, d, onednn_engine(), DNNL_MEMORY_NONE));
    return memory;
}

DescRef onednn_desc(dnnl_memory_t memory) {
    DescRef d;
    DNNL_TRY(dnnl_memory_get_memory_desc(memory, &d));
    return d;
}

dnnl_primitive_t onednn_reorder(DescRef to, DescRef from) {
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    DNNL_TRY(dnnl_reorder_primitive_desc_create(&pd, from, onednn_engine(), to, onednn_engine(), NULL));
    DNNL_TRY(dnnl_primitive_create(&primitive, pd));
    DNNL_TRY(dnnl_primitive_desc_destroy(pd));
    return primitive;
}

void onednn_append_sum(dnnl_post_ops_t ops) {
#if DNNL_VERSION_MAJOR >= 3
    DNNL_TRY(dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef));
#else
    DNNL_TRY(dnnl_post_ops_append_sum(ops, 1));
#endif
}

float *onednn_wide(int place, size_t n) {
    static void *room[WIDE_W + 1];
    static size_t bytes[WIDE_W + 1];
    return workspace_grow(&room[place], &bytes[place], n * sizeof(float), "widened factors");
}

void onednn_execute(dnnl_primitive_t primitive, int count, const dnnl_exec_arg_t *arguments) {
    DNNL_TRY(dnnl_primitive_execute(primitive, onednn_stream(), count, arguments));
    DNNL_TRY(dnnl_stream_wait(onednn_stream()));
}

/* == What the device asks of the library ========================================================================== */

const char *library_name(void) {
    static char text[32];
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

/* oneDNN is C++ and throws through its C interface if memory runs out.  No caller catches that, so the C++ library ends
 * the process; it first calls this function, on the thread that has thrown. */
static const void *(*thrown_type)(void);

/* std::type_info: its table of functions, then the name. */
static void on_exception(void) {
    const void *type = thrown_type ? thrown_type() : NULL;
    const char *name = type ? ((const char *const *)type)[1] : "unknown";
    if (!strcmp(name, "St9bad_alloc")) die_at_once("out of memory in oneDNN");
    die_at_once("oneDNN failed with the C++ exception %s", name);
}

/* Looked up by name: a C program is not linked with the C++ library, which comes with oneDNN. */
void library_begin(void) {
    void (*(*set)(void (*)(void)))(void);
    *(void **)&set = dlsym(RTLD_DEFAULT, "_ZSt13set_terminatePFvvE");
    *(void **)&thrown_type = dlsym(RTLD_DEFAULT, "__cxa_current_exception_type");
    if (set) set(on_exception);
}

/* A primitive whose creation has thrown stays in oneDNN's cache as a promise that is broken, and the next one of its
 * kind would wait for it.  A cache without room forgets it. */
void library_recover(void) {
    int room;
    if (dnnl_get_primitive_cache_capacity(&room) != dnnl_success) return;
    dnnl_set_primitive_cache_capacity(0);
    dnnl_set_primitive_cache_capacity(room);
}

/* On x86 oneDNN reports it, and also respects ONEDNN_MAX_CPU_ISA. */
bool library_multiplies_bfloat16(void) {
#if defined(__x86_64__) || defined(__i386__)
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
#elif defined(__aarch64__)
    const unsigned long bf16 = 1 << 14; /* HWCAP2_BF16 */
    return getauxval(AT_HWCAP2) & bf16;
#else
    return false;
#endif
}

bool library_limit_to_avx2(void) { return dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2) == dnnl_success; }
