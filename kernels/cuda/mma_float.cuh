/* Part of device.cuh, in a file of its own because the emulator runs the same code (tests/emulate/fibers.cpp). */
#ifndef VIT_KERNELS_CUDA_MMA_FLOAT_CUH
#define VIT_KERNELS_CUDA_MMA_FLOAT_CUH

/* The product of mma_bf16 for floats, exactly.  Every lane needs two rows of A and two columns of B, which takes four
 * shuffles for four multiply-adds. */
DEVICE void mma_float(float (&c)[4], const float (&a)[8], const float (&b)[4]) {
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int k = 0; k < 16; k++) {
        int holder = k % 8 / 2, i = k / 8 * 4 + k % 2, j = k / 8 * 2 + k % 2;
        float top = warp_shuffle(a[i], 4 * g + holder), low = warp_shuffle(a[i + 2], 4 * g + holder);
        float left = warp_shuffle(b[j], 8 * t + holder), right = warp_shuffle(b[j], 8 * t + 4 + holder);
        c[0] += top * left;
        c[1] += top * right;
        c[2] += low * left;
        c[3] += low * right;
    }
}

#endif
