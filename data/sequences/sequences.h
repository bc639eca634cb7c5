/* Data as sequences of bytes, for density models: what a sequence is, how many there are, and their bytes.
 *
 *   images  H W C bytes, pixel by pixel in rows, the channels of a pixel together: byte (row W + column) C + channel.
 *           Nothing is augmented.  Other sizes become H x W by Pillow's BOX filter, sides independently.
 *   text    any file, its bytes unchanged.  A sequence is a window of n + 1 bytes: bytes 0 .. n-1 are read, bytes
 *           1 .. n are predicted.
 *   audio   WAV files, one after another, as 8-bit mu-law samples at `rate`, mono.  A sequence is n samples.
 *
 * Text and audio are streams, which `shares` divides into three consecutive splits.  Of the training images, the last
 * `validation_images` of a permutation keyed by split_seed are held out for validation; without any, validation uses
 * the test images, which folders with training images alone do not have. */
#ifndef VIT_DATA_SEQUENCES_SEQUENCES_H
#define VIT_DATA_SEQUENCES_SEQUENCES_H

#include "core/config/config.h"
#include "core/error.h"
#include "data/images/transform.h"

/* SEQUENCES_AUTO: the files decide; an open set always has one of the other kinds. */
typedef enum { SEQUENCES_AUTO, SEQUENCES_IMAGES, SEQUENCES_TEXT, SEQUENCES_AUDIO } SequencesKind;
typedef enum { SEQUENCES_TRAIN, SEQUENCES_VALIDATION, SEQUENCES_TEST, SEQUENCES_SPLITS } SequencesSplit;
extern const char *const sequences_split_names[SEQUENCES_SPLITS]; /* for messages: "training" */

typedef struct {
    const char *data, *data_dir;
    SequencesKind kind;
    int tokens;             /* n of text and audio */
    int image_side;         /* H and W; 0: the data set's own, 64 where its pictures differ in size */
    bool grey;              /* one channel */
    int rate;               /* of audio, in samples a second */
    ConfigFloats shares;    /* for text and audio: three numbers, divided by their sum */
    int validation_images;  /* -1: 2,000, or a tenth of the training images if that is less */
    uint64_t split_seed;
    int train_limit, test_limit; /* sequences; 0: all.  test_limit holds for validation, too */
} SequencesSettings;

extern const ConfigGroup sequences_settings;

typedef struct SequencesSource SequencesSource;

typedef struct {
    char name[32];
    SequencesKind kind;
    int n;                       /* tokens that a sequence predicts: H W C, or the setting `tokens` */
    int row_bytes;               /* of one sequence: n, for text n + 1 */
    int height, width, channels; /* images; else 0 */
    int rate;                    /* audio; else 0 */
    size_t count[SEQUENCES_SPLITS]; /* images: their number; text and audio: bytes of the split */
    SequencesSource *source;     /* NULL: the set is only described */
} SequenceSet;

/* Opens all three splits.  On error ends the process with one line that names the file or setting. */
void sequences_open(SequenceSet *set, const SequencesSettings *s);

/* Fills in all but `count` and `source`.  For a data set given by its name, and for text and audio if `kind` says so,
 * no file is needed. */
void sequences_describe(SequenceSet *set, const SequencesSettings *s);

/* Closes a set, which may only have been described. */
void sequences_close(SequenceSet *set);

/* == Training ===================================================================================================== */

/* The number of sequences in an epoch, 0 if the split is too short: all images, or for text and audio the windows that
 * begin every n bytes from an offset below n.  The offset is drawn for each epoch and does not change the number. */
size_t sequences_epoch_length(const SequenceSet *set);

/* The offset of that epoch's windows; 0 for images. */
size_t sequences_offset(const SequenceSet *set, uint64_t seed, uint32_t epoch);

/* Writes training sequence `index` of the epoch, before shuffling, to tokens [row_bytes]; its bytes depend on the
 * offset only.  Thread-safe, with a scratch for each thread.  On failure returns false and sets `error`. */
bool sequences_train(const SequenceSet *set, size_t offset, size_t index, uint8_t *tokens, TransformScratch *scratch,
                     Error *error);

/* == Evaluation: every token of a split is scored once ============================================================ */

/* The number of tokens that an evaluation scores: n of each image, all bytes of a text's split but its first, and all
 * samples of audio. */
size_t sequences_scored(const SequenceSet *set, SequencesSplit split);

/* The number of windows of an evaluation that moves by `step` tokens, 1 <= step <= n: the first scores all of its n
 * tokens, every later one its last `step`, and the last one is moved back to end with the split and scores what is
 * left. Images: their number, whatever the step. */
size_t sequences_windows(const SequenceSet *set, SequencesSplit split, int step);

/* Writes evaluation window `index` to tokens [row_bytes]; its targets *scored_from .. n-1 are to be scored.
 * Thread-safe, with a scratch for each thread.  On failure returns false and sets `error`. */
bool sequences_window(const SequenceSet *set, SequencesSplit split, int step, size_t index, uint8_t *tokens,
                      int *scored_from, TransformScratch *scratch, Error *error);

/* Writes the sequence's name for messages, such as "image 17 of cifar10" or "book.txt from byte 1024 on". */
void sequences_name(const SequenceSet *set, SequencesSplit split, size_t index, char *text, size_t size);

/* counts [256]: how often each byte occurs in a split of text or sound.  Returns their sum. */
size_t sequences_count_bytes(const SequenceSet *set, SequencesSplit split, size_t counts[256]);

/* pixels [height,width,3] as the first `rows` rows of an image of the set, tokens [rows,W,C].  False: out of memory. */
bool sequences_from_pixels(const SequenceSet *set, uint8_t *tokens, int rows, const uint8_t *pixels, int height,
                           int width, TransformScratch *scratch, Error *error);

#endif
