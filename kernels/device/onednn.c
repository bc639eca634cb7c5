#include "kernels/device/onednn.h"

#include "kernels/device/device.h"

static dnnl_engine_t engine;
static dnnl_stream_t stream;

/* == One engine and one stream ==================================================================================== */

dnnl_engine_t onednn_engine(void) {
    if (!engine) {
        DNNL_TRY(dnnl_engine_create(&engine, dnnl_cpu, 0));
        DNNL_TRY(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
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
    static float *room[WIDE_W + 1];
    static size_t count[WIDE_W + 1];
    if (n > count[place]) {
        device_free(room[place]);
        room[place] = device_malloc(n * sizeof(float), "widened factors");
        count[place] = n;
    }
    return room[place];
}

void onednn_execute(dnnl_primitive_t primitive, int count, const dnnl_exec_arg_t *arguments) {
    DNNL_TRY(dnnl_primitive_execute(primitive, onednn_stream(), count, arguments));
    DNNL_TRY(dnnl_stream_wait(onednn_stream()));
}
