/* Rotary position embedding (Su et al. 2021) on the features, in the numerator only.  phi [B,N,2,H,F]
 * forward   y_(2p), y_(2p+1) = phi_(2p), phi_(2p+1) rotated by the angle n theta_p, theta_p = 10000^(-2p/F)
 * backward  rotation by the opposite angle
 * saves     psi, rotations [N,F/2,2].
 * rope-2d rotates half of the pairs by the token's row and half by its column; a class token is not rotated.
 * rope-3d is the same for images, and in clips a third of the pairs each by frame, row and column. */
#include "layers/features/relative.h"

#include "layers/papers.h"

static void rope_plan(Relative *r, const Attention *a, Plan *plan, int B) {
    (void)B;
    size_t pairs = (size_t)a->N * (size_t)(r->F / 2);
    plan_keep(plan, a->prefix, "rotations", &r->rotations, pairs * 2 * sizeof *r->rotations);
}

extern const RelativeKind relative_rope;

static void rotate(const Relative *r, const Attention *a, const real *phi, int B) {
    rope_table(r->rotations, a->N, r->F, r->kind == &relative_rope ? NULL : &a->grid);
    rope_forward(r->psi, phi, r->rotations, &(FeatureShape){B, a->N, a->H, a->D, r->F});
}

static void rotate_backward(const Relative *r, const Attention *a, real *dphi, int B) {
    rope_backward(dphi, r->dpsi, r->rotations, &(FeatureShape){B, a->N, a->H, a->D, r->F});
}

static size_t rope_macs(const Relative *r, const Attention *a) {
    return 2 * (size_t)a->N * (size_t)a->H * 2 * (size_t)r->F;
}

#define ROPE(id, label, text) \
    const RelativeKind id = {                  \
        .name = label,                         \
        .summary = text,                       \
        .paper = PAPER_ROPE,                   \
        .numerator = true,                     \
        .plan = rope_plan,                     \
        .features = rotate,           \
        .features_backward = rotate_backward,  \
        .macs = rope_macs,                     \
    }

ROPE(relative_rope, "rope", "rotates pairs of features by the token's index (Su et al. 2021)");
ROPE(relative_rope_2d, "rope-2d", "rotates half of the pairs by the row, the others by the column");
ROPE(relative_rope_3d, "rope-3d", "as rope-2d, in clips a third each by frame, row and column");
