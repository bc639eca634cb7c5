/* The table of operators, in the order of --help.  X(name) stands for the const AttentionOp name_op. */
#include "layers/attention.h"

#define OPERATORS(X) \
    X(softmax) X(linear) X(ripple) X(ripple_fixed) X(ripple_softmax_weights) X(ripple_truncated) X(ripple_log) \
    X(ripple_dense) X(ripple_explicit_softmax) X(convit) X(focused) X(sparse_strided) X(sparse_fixed) X(efficient) \
    X(hydra) X(relu_linear) X(castling) X(nystrom) X(soft) X(lisa) X(sa9) X(sa9_heads) X(sa10) X(sa11) X(gf) \
    X(dwconv7) X(convattn) X(lambda) X(inception) X(rsa) X(conv) X(sepconv) X(window) X(reduced) X(cswin) \
    X(cswin_focused) X(focused_reduced)

#define DECLARATION(name) extern const AttentionOp name##_op;
#define ROW(name) &name##_op,

OPERATORS(DECLARATION)

const AttentionOp *const attention_operators[] = {OPERATORS(ROW) NULL};
