/* Shared by the files that use oneDNN, 2.x or 3.x: checked calls, one engine and one stream, memory without an
 * address. */
#ifndef VIT_KERNELS_DEVICE_ONEDNN_H
#define VIT_KERNELS_DEVICE_ONEDNN_H

#include <dnnl.h>

#include "core/die.h"
#include "real.h"

#define DNNL_TRY(call)                                                                                       \
    do {                                                                                                     \
        dnnl_status_t status_ = (call);                                                                      \
        if (status_ == dnnl_out_of_memory) die("out of memory in oneDNN (%s:%d)", __FILE__, __LINE__);       \
        if (status_ != dnnl_success)                                                                         \
            die("oneDNN: %s failed with status %d (%s:%d)", #call, (int)status_, __FILE__, __LINE__);        \
    } while (0)

/* A description with another owner. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t DescRef;
#else
typedef const dnnl_memory_desc_t *DescRef;
#endif

/* The type of activations. */
#define ONEDNN_REAL (sizeof(real) == 2 ? dnnl_bf16 : dnnl_f32)

dnnl_engine_t onednn_engine(void);
dnnl_stream_t onednn_stream(void);

dnnl_memory_t onednn_memory(DescRef d);
DescRef onednn_desc(dnnl_memory_t memory);
/* The primitive that copies from one layout and type into another. */
dnnl_primitive_t onednn_reorder(DescRef to, DescRef from);

/* The result is added to the contents of the destination. */
void onednn_append_sum(dnnl_post_ops_t ops);

/* Three buffers of n floats, for the widened numbers that a library without bfloat16 is given.  They are allocated by
 * the first calls with a size. */
enum { WIDE_X, WIDE_Y, WIDE_W };
float *onednn_wide(int place, size_t n);

/* Runs the primitive and waits for it. */
void onednn_execute(dnnl_primitive_t primitive, int count, const dnnl_exec_arg_t *arguments);

#endif
