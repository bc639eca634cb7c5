/* Resampling of tables on a grid (training/params.h, Resampled). from [outer,prefix + h*w,inner] -> to [outer,prefix +
 * h'*w',inner]
 *   to_yx = sum_ij u_yi v_xj from_ij,  weights u of the rows and v of the columns those of core/resampling.h,
 * in double.  Those weights (Keys' a = -1/2, half-pixel centres, cut off and normalised at the edges, widened when the
 * grid shrinks) are what torch.nn.functional.interpolate(mode="bicubic", antialias=True) uses, and timm's
 * resample_abs_pos_embed (layers/pos_embed.py) calls that.  Without antialias a = -3/4, the nearest four values count
 * whatever the grids' sizes, and those beyond an edge are the edge's.  timm's resize_rel_pos_bias_table (without scipy)
 * puts the old entries of offsets at distances 1, 1 + q, 1 + q + q^2, ... from the middle, with the q for which the
 * last ones reach the edge of the new grid, and interpolates bilinearly between those.  The frames of clips,
 * [outer,prefix + t*h*w,inner] or [tables,t,h,w], are resampled bilinearly without antialias. */
#include "layers/vit/resample_grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/resampling.h"

/* The dimension of frames, if they have one; otherwise -1. */
static int frames_axis(const Param *p) { return p->grid.positions.frames > 1 && p->time.apart ? p->time.axis : -1; }

static bool other_dimensions_match(const Param *p, const size_t *shape) {
    for (int d = 0; d < p->ndim; d++) {
        bool on_grid = (d >= p->grid.axis && d < p->grid.axis + p->grid.axes) || d == frames_axis(p);
        if (!on_grid && shape[d] != (size_t)p->shape[d]) return false;
    }
    return true;
}

bool grid_of_tensor(ParamGrid *grid, const Param *p, const ParamGrid *known, int ndim, const size_t *shape) {
    if (!p->grid.axes || ndim != p->ndim || !other_dimensions_match(p, shape)) return false;
    bool told = known && known->axes;
    *grid = told ? *known : p->grid;
    if (grid->axis != p->grid.axis || grid->axes != p->grid.axes || grid->prefix != p->grid.prefix) return false;
    Grid *positions = &grid->positions;
    const size_t *lengths = shape + grid->axis;
    if (lengths[0] > 1 << 24 || lengths[grid->axes - 1] > 1 << 24) return false;
    if (frames_axis(p) >= 0) positions->frames = shape[frames_axis(p)] <= 1 << 24 ? (int)shape[frames_axis(p)] : 0;
    int now = p->grid.positions.frames;
    if (positions->frames < 1 || (positions->frames > 1) != (now > 1)) return false;
    if (positions->frames != now && p->time.rule == TIME_CIRCLE) return false;
    if (grid->axes == 2) {
        positions->rows = (int)lengths[0];
        positions->columns = (int)lengths[1];
        return positions->rows > 0 && positions->columns > 0;
    }
    int count = (int)lengths[0] - grid->prefix, area = count / positions->frames;
    int side = (int)lround(sqrt(area > 0 ? area : 0));
    if (!told) positions->rows = positions->columns = side;
    size_t places = (size_t)positions->frames * (size_t)positions->rows * (size_t)positions->columns;
    return count > 0 && places == (size_t)count;
}

/* Keys' cubic at distance d >= 0 from its centre, a = -3/4. */
static double cubic(double d) {
    const double a = -0.75;
    if (d < 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? ((d - 5) * d + 8) * d * a - 4 * a : 0;
}

/* The four neighbours of a centre, fewer at an edge.  Returns their number, from *first on. */
static int bicubic_weights(double weights[4], int *first, int in, int out, int j) {
    double at = ((double)j + 0.5) * in / out - 0.5;
    int below = (int)floor(at), last = below + 2 < in - 1 ? below + 2 : in - 1;
    *first = below > 1 ? below - 1 : 0;
    memset(weights, 0, 4 * sizeof *weights);
    for (int i = below - 1; i <= below + 2; i++) {
        int inside = i < 0 ? 0 : i < last ? i : last;
        weights[inside - *first] += cubic(fabs(at - i));
    }
    return last - *first + 1;
}

/* 1 + q + ... + q^(n-1) */
static double geometric_sum(double q, int n) { return (pow(q, n) - 1) / (q - 1); }

/* The position of old entry i of `in` in the new grid, whose middle is 0. */
static double geometric_place(double q, int in, int i) {
    int offset = i - in / 2;
    return offset < 0 ? -geometric_sum(q, -offset) : geometric_sum(q, offset);
}

/* The two neighbours of a position, or one.  Returns their number, from *first on. */
static int geometric_weights(double weights[2], int *first, int in, int out, int j) {
    double low = 1.01, high = 1.5, q = low;
    while (high - low > 1e-6) {
        q = (low + high) / 2;
        if (geometric_sum(q, in / 2) > out / 2) high = q;
        else low = q;
    }
    int at = j - out / 2, right = 0;
    while (right < in - 1 && geometric_place(q, in, right) < at) right++;
    *first = right > 0 ? right - 1 : 0;
    double left = fmax(at - geometric_place(q, in, *first), 0), rest = fmax(geometric_place(q, in, right) - at, 0);
    weights[1] = left + rest > 0 ? left / (left + rest) : 0;
    weights[0] = right > 0 ? 1 - weights[1] : 1;
    return right > 0 ? 2 : 1;
}

static int weights_of(double *weights, int *first, const ResampleAxis *axis, int j, Resampled rule) {
    if (rule == RESAMPLED_BILINEAR) return interpolation_weights(weights, first, axis->in, axis->out, j);
    if (rule == RESAMPLED_GEOMETRIC) return geometric_weights(weights, first, axis->in, axis->out, j);
    if (rule == RESAMPLED_BICUBIC) return bicubic_weights(weights, first, axis->in, axis->out, j);
    return resample_weights(weights, first, axis, RESAMPLE_BICUBIC, j);
}

/* y [outer,out,inner] = weights x, x [outer,in,inner]. */
static void resample_dimension(double *y, const double *x, size_t outer, int out, int in, size_t inner,
                               Resampled rule) {
    ResampleAxis axis = resample_whole(in, out);
    double *weights = xcalloc(4 + (size_t)resample_taps(&axis, RESAMPLE_BICUBIC), sizeof *weights, "resampling");
    for (int j = 0; j < out; j++) {
        int first, count = weights_of(weights, &first, &axis, j, rule);
        for (size_t o = 0; o < outer; o++) {
            double *to = y + (o * (size_t)out + (size_t)j) * inner;
            memset(to, 0, inner * sizeof *to);
            for (int i = 0; i < count; i++) {
                const double *from = x + (o * (size_t)in + (size_t)(first + i)) * inner;
                for (size_t k = 0; k < inner; k++) to[k] += weights[i] * from[k];
            }
        }
    }
    free(weights);
}

void grid_resample(float *to, const Param *p, const float *from, const ParamGrid *grid) {
    size_t outer = 1, inner = 1, rows = (size_t)grid->positions.rows, columns = (size_t)grid->positions.columns;
    size_t new_rows = (size_t)p->grid.positions.rows, new_columns = (size_t)p->grid.positions.columns;
    size_t frames = (size_t)grid->positions.frames, new_frames = (size_t)p->grid.positions.frames;
    for (int d = 0; d < p->grid.axis; d++) outer *= d == frames_axis(p) ? 1 : (size_t)p->shape[d];
    for (int d = p->grid.axis + p->grid.axes; d < p->ndim; d++) inner *= (size_t)p->shape[d];
    size_t front = (size_t)grid->prefix * inner, frame = new_rows * new_columns * inner;
    double *whole = xcalloc(frames * rows * columns, inner * sizeof *whole, "resampling");
    double *wide = xcalloc(frames * rows * new_columns, inner * sizeof *wide, "resampling");
    double *slices = xcalloc(frames, frame * sizeof *slices, "resampling");
    double *done = xcalloc(new_frames, frame * sizeof *done, "resampling");
    for (size_t o = 0; o < outer; o++) {
        memcpy(to, from, front * sizeof *to);
        to += front;
        from += front;
        for (size_t i = 0; i < frames * rows * columns * inner; i++) whole[i] = from[i];
        resample_dimension(wide, whole, frames * rows, (int)new_columns, (int)columns, inner, p->resampled);
        resample_dimension(slices, wide, frames, (int)new_rows, (int)rows, new_columns * inner, p->resampled);
        resample_dimension(done, slices, 1, (int)new_frames, (int)frames, frame, RESAMPLED_BILINEAR);
        for (size_t i = 0; i < new_frames * frame; i++) to[i] = (float)done[i];
        to += new_frames * frame;
        from += frames * rows * columns * inner;
    }
    free(done);
    free(slices);
    free(wide);
    free(whole);
}
