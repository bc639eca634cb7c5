#include "kernels/cpu/onednn.h"

static dnnl_engine_t engine;
static dnnl_stream_t stream;

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

void onednn_execute(dnnl_primitive_t primitive, int count, const dnnl_exec_arg_t *arguments) {
    DNNL_TRY(dnnl_primitive_execute(primitive, onednn_stream(), count, arguments));
    DNNL_TRY(dnnl_stream_wait(onednn_stream()));
}
