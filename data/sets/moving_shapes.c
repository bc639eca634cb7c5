#include "data/sets/moving_shapes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/rng.h"
#include "data/video/clips.h"
#include "data/sets/shapes.h"

enum { MOST_SPEED = 3 };

const int moving_directions[8][2] = {{1, 0}, {1, 1}, {0, 1}, {-1, 1}, {-1, 0}, {-1, -1}, {0, -1}, {1, -1}};

/* == The tasks ==================================================================================================== */

static const char *const direction_names[8] = {"right", "right-down", "down", "left-down",
                                               "left",  "left-up",    "up",   "right-up"};
static const int direction_mirrored[8] = {4, 3, 2, 1, 0, 7, 6, 5};

/* A mirror image keeps the direction of a downward motion and reverses that of a motion to the right. */
static const int sense_mirrored[2] = {-1, -1};
static const int turn_mirrored[2] = {1, 0};

static const struct {
    const char *name;
    int classes;
    const char *const *class_names;
    const int *mirrored;
} tasks[MOVING_TASKS] = {
    [MOVING_DIRECTION] = {"moving-shapes", 8, direction_names, direction_mirrored},
    [MOVING_SENSE] = {"moving-shapes-sense", 2, (const char *const[]){"forth", "back"}, sense_mirrored},
    [MOVING_TURN] = {"moving-shapes-turn", 2, (const char *const[]){"clockwise", "anticlockwise"}, turn_mirrored},
    [MOVING_SIZE] = {"moving-shapes-size", 2, (const char *const[]){"grows", "shrinks"}, NULL},
    [MOVING_PAIR] = {"moving-shapes-pair", 8, direction_names, direction_mirrored},
};

int moving_classes(MovingTask task) { return tasks[task].classes; }

/* == A scene ====================================================================================================== */

static void push(MovingFigure *f, int direction, int speed) {
    f->vx += speed * moving_directions[direction][0];
    f->vy += speed * moving_directions[direction][1];
}

/* Draws a figure without motion.  Discs and rings are left out, because their rotation is invisible. */
static MovingFigure still_figure(ShapesStream *s, int side) {
    MovingFigure f = {.kind = 2 + shapes_below(s, SHAPES_CLASSES - 2)};
    f.x = shapes_below(s, side);
    f.y = shapes_below(s, side);
    f.angle = shapes_below(s, MOVING_ANGLES);
    f.size = shapes_below(s, MOVING_SIZES);
    f.least = f.largest = shapes_uniform(s, 7, 12);
    for (int k = 0; k < 3; k++) f.colour[k] = shapes_uniform(s, 140, 235);
    return f;
}

MovingScene moving_scene(MovingTask task, uint64_t seed, uint32_t split, uint32_t index) {
    ShapesStream s = {seed, split, index, 0, RNG_MOVING};
    MovingScene scene = {.side = MOVING_SIDE, .figures = 1, .seed = seed, .split = split, .index = index};
    int label = (int)(index % (uint32_t)tasks[task].classes);
    float turn = shapes_uniform(&s, 0, 6.2831853f), wave = shapes_uniform(&s, 3, 12);
    scene.across = cosf(turn) / wave;
    scene.down = sinf(turn) / wave;
    scene.phase = shapes_uniform(&s, 0, 1);
    for (int k = 0; k < 3; k++) scene.ground[k] = shapes_uniform(&s, 20, 100);
    for (int k = 0; k < 3; k++) scene.stripe[k] = shapes_uniform(&s, -16, 16);
    scene.noise = shapes_uniform(&s, 0, 0.08f);

    MovingFigure *f = scene.figure, first = still_figure(&s, scene.side), second = still_figure(&s, scene.side);
    int direction = shapes_below(&s, 8), speed = 1 + shapes_below(&s, MOST_SPEED), slow = 1 + shapes_below(&s, 2);
    f[0] = first;
    switch (task) {
    case MOVING_DIRECTION: push(f, label, speed); break;
    case MOVING_SENSE: push(f, direction % 4 + 4 * label, speed); break;
    case MOVING_TURN:
        push(f, direction, speed);
        f->turn = label ? -slow : slow;
        break;
    case MOVING_SIZE:
        push(f, direction, speed);
        f->growth = label ? -1 : 1;
        f->least = 5;
        f->largest = 13;
        break;
    case MOVING_PAIR:
        scene.figures = 2;
        f[1] = second;
        f[0].kind = 0;
        push(&f[0], direction, speed);
        push(&f[1], direction, speed);
        push(&f[1], label, slow);
        break;
    case MOVING_TASKS: break;
    }
    return scene;
}

/* == A frame ====================================================================================================== */

static void paint_ground(float *canvas, const MovingScene *scene) {
    int side = scene->side;
    for (int y = 0; y < side; y++) {
        for (int x = 0; x < side; x++) {
            float turns = scene->across * (float)x + scene->down * (float)y + scene->phase;
            float wave = fabsf(turns - floorf(turns) - 0.5f) - 0.25f;
            for (int k = 0; k < 3; k++) canvas[(y * side + x) * 3 + k] = scene->ground[k] + 2 * wave * scene->stripe[k];
        }
    }
}

/* The distance depends only on the offset from the figure's cell, so the same figure has the same pixels at any
 * position, to the last bit. */
static void paint_figure(float *canvas, int side, const MovingFigure *f, int t) {
    float share = (float)moving_at(f->size, f->growth, t, MOVING_SIZES) / (MOVING_SIZES - 1);
    float radius = f->least + (f->largest - f->least) * share;
    float angle = 6.2831853f / MOVING_ANGLES * (float)moving_at(f->angle, f->turn, t, MOVING_ANGLES);
    float cosine = cosf(angle) / radius, sine = sinf(angle) / radius;
    int x = moving_at(f->x, f->vx, t, side), y = moving_at(f->y, f->vy, t, side);
    int far = (int)ceilf(shapes_reach * radius + 0.5f);
    for (int dy = -far; dy <= far; dy++) {
        for (int dx = -far; dx <= far; dx++) {
            float u = cosine * (float)dx + sine * (float)dy, v = cosine * (float)dy - sine * (float)dx;
            float cover = fminf(0.5f - radius * shapes_distance(f->kind, u, v), 1);
            if (cover <= 0) continue;
            float *pixel = canvas + (moving_at(y, dy, 1, side) * side + moving_at(x, dx, 1, side)) * 3;
            for (int k = 0; k < 3; k++) pixel[k] += cover * (f->colour[k] - pixel[k]);
        }
    }
}

void moving_draw(const MovingScene *scene, int t, uint8_t *pixels) {
    float canvas[MOVING_SIDE * MOVING_SIDE * 3];
    paint_ground(canvas, scene);
    for (int i = 0; i < scene->figures; i++) paint_figure(canvas, scene->side, &scene->figure[i], t);
    ShapesStream s = {scene->seed, scene->split, scene->index, 0, RNG_MOVING};
    shapes_noise(pixels, canvas, (size_t)(scene->side * scene->side * 3), t, &s, scene->noise);
}

/* == The data sets ================================================================================================ */

typedef struct {
    uint64_t seed;
    uint32_t split;
    MovingTask task;
} Moving;

/* A clip has any number of frames, from 0 on. */
static bool moving_read(const Dataset *dataset, size_t index, const ClipChoice *choice, SampleBuffer *buffer,
                        const ClipTaker *taker, int *label, Error *error) {
    const Moving *moving = dataset->state;
    MovingScene scene = moving_scene(moving->task, moving->seed, moving->split, (uint32_t)index);
    Sample frame = {.size = MOVING_SIDE * MOVING_SIDE * 3, .height = MOVING_SIDE, .width = MOVING_SIDE};
    *label = frame.label = (int)(index % (size_t)dataset->classes);
    if (!sample_buffer_grow(buffer, frame.size)) return refuse_memory(error, frame.size, "a frame");
    frame.bytes = buffer->bytes;
    for (int t = 0; t < choice->frames; t++) {
        moving_draw(&scene, t, buffer->bytes);
        frame.frame = t;
        if (!taker->take(taker->context, t, &frame, error)) return false;
    }
    return true;
}

static void moving_close(Dataset *dataset) { free(dataset->state); }

static void moving_describe(Dataset *dataset, MovingTask task) {
    *dataset = (Dataset){.clips = true,
                         .height = MOVING_SIDE,
                         .width = MOVING_SIDE,
                         .classes = tasks[task].classes,
                         .class_names = tasks[task].class_names,
                         .mirrored = tasks[task].mirrored,
                         .mean = {0.255f, 0.255f, 0.255f},
                         .std = {0.135f, 0.135f, 0.135f}};
    snprintf(dataset->name, sizeof dataset->name, "%s", tasks[task].name);
}

void moving_open(Dataset *dataset, MovingTask task, bool train, uint64_t seed, size_t limit) {
    if (limit > UINT32_MAX)
        die("%s: limit %zu: expected at most %u clips", tasks[task].name, limit, UINT32_MAX);
    Moving *moving = xcalloc(1, sizeof *moving, "the moving shapes");
    *moving = (Moving){seed, train ? 0 : 1, task};
    moving_describe(dataset, task);
    dataset->count = limit ? limit : train ? MOVING_TRAIN : MOVING_TEST;
    dataset->read_clip = moving_read;
    dataset->close = moving_close;
    dataset->state = moving;
}

static MovingTask task_named(const char *name) {
    MovingTask task = MOVING_DIRECTION;
    while (strcmp(tasks[task].name, name)) task++;
    return task;
}

/* Clips are the same for every run, so that runs with different seeds can be compared. */
static void open_named(Dataset *dataset, const char *name, bool train, size_t limit) {
    moving_open(dataset, task_named(name), train, 0, limit);
}

static void describe_named(Dataset *dataset, const char *name) { moving_describe(dataset, task_named(name)); }

const DatasetKind moving_kinds[MOVING_TASKS] = {
    {.name = "moving-shapes", .generates = true, .open = open_named, .describe = describe_named},
    {.name = "moving-shapes-sense", .generates = true, .open = open_named, .describe = describe_named},
    {.name = "moving-shapes-turn", .generates = true, .open = open_named, .describe = describe_named},
    {.name = "moving-shapes-size", .generates = true, .open = open_named, .describe = describe_named},
    {.name = "moving-shapes-pair", .generates = true, .open = open_named, .describe = describe_named},
};
