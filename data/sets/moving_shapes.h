/* The embedded clips: moving figures, labelled by their motion, drawn on demand on a torus of 64 x 64 cells.
 *
 * A single frame has no information about the class.  Everything that moves - place, angle, size - starts uniformly on
 * its cycle and advances by whole steps, and a shift of a cycle is a bijection: whatever the class, frame t of all
 * clips is drawn from the same distribution as frame 0.  All else (figure, colours, background, noise) is independent
 * of the class.  In an unordered bag of frames v and -v are the same; the set moving-shapes-sense has only such pairs.
 *
 *   moving-shapes         eight directions, 1 to 3 cells a frame
 *   moving-shapes-sense   the sense of a motion along one of four axes: half of the directions against their opposites
 *   moving-shapes-turn    the sign of a turn by one or two 24ths a frame, while the figure moves anywhere
 *   moving-shapes-size    grows or shrinks by one eighth of a cycle a frame, then jumps; likewise
 *   moving-shapes-pair    two figures: the direction of the other one's motion as the disc sees it */
#ifndef VIT_DATA_SETS_MOVING_SHAPES_H
#define VIT_DATA_SETS_MOVING_SHAPES_H

#include "data/sets/dataset.h"

typedef enum { MOVING_DIRECTION, MOVING_SENSE, MOVING_TURN, MOVING_SIZE, MOVING_PAIR, MOVING_TASKS } MovingTask;

enum { MOVING_SIDE = 64, MOVING_TRAIN = 20000, MOVING_TEST = 2000, MOVING_ANGLES = 24, MOVING_SIZES = 8 };

/* Directions 0 .. 7, clockwise from the right; d + 4 is the opposite of d. */
extern const int moving_directions[8][2];

/* The position, after t frames, of something that began at `start` of a cycle and moves by `step` a frame. */
static inline int moving_at(int start, int step, int t, int cycle) {
    int at = (int)((start + (int64_t)step * t) % cycle);
    return at < 0 ? at + cycle : at;
}

/* A figure in frame 0, and what each frame adds. */
typedef struct {
    int kind;             /* shapes_distance's label */
    int x, y, vx, vy;     /* cells of the torus */
    int angle, turn;      /* of MOVING_ANGLES */
    int size, growth;     /* of MOVING_SIZES */
    float least, largest; /* the radius at size 0 and at size MOVING_SIZES - 1 */
    float colour[3];
} MovingFigure;

typedef struct {
    int side, figures;
    MovingFigure figure[2]; /* the second one lies over the first */
    float ground[3], stripe[3], across, down, phase; /* the background, which does not move */
    float noise;
    uint64_t seed; /* of the noise, which is drawn anew for every frame */
    uint32_t split, index;
} MovingScene;

int moving_classes(MovingTask task);

/* The scene of clip `index` of the split (0 train, 1 test), whose class is index mod moving_classes(task); a pure
 * function of its arguments. */
MovingScene moving_scene(MovingTask task, uint64_t seed, uint32_t split, uint32_t index);

/* pixels [side,side,3] of frame t.  Requires figures smaller than the side. */
void moving_draw(const MovingScene *scene, int t, uint8_t *pixels);

/* Opens the clips of a task.  Without a limit 20,000 training or 2,000 test clips; a larger limit draws more. */
void moving_open(Dataset *dataset, MovingTask task, bool train, uint64_t seed, size_t limit);

/* One kind of data set for each task. */
extern const DatasetKind moving_kinds[MOVING_TASKS];

#endif
