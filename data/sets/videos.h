/* Videos as a data set: files that data/video/video.h reads, or folders of frames, which need no library for videos.
 *
 *   <folder>/train/<class>/<video>         as for images, with val, valid or test; a video is a file or a folder of frames
 *   <folder>/train.txt                     a list, and val.txt: lines `path label`, or `path frames label` for a folder of
 *                                          frames, with spaces or commas between; classes.txt may name the classes
 *   <folder>/train.csv                     Kinetics' own: label,youtube_id,time_start,time_end,...; any other csv is a
 *                                          list as above
 *   <folder>/train.json, labels.json       Something-Something V2, whose clips are never mirrored; names may begin with
 *                                          something-something-v2-, and validation.json will do
 *
 * Paths of lists are relative to the folder.  Kinetics' and Something-Something's videos are looked for in it, and in
 * its subfolders videos, the split and, for the latter, 20bn-something-something-v2; Kinetics' also below those in the
 * folder of their class, written with spaces or underscores.  Frames are the pictures of a folder, in the order of the
 * numbers in their names. */
#ifndef VIT_DATA_SETS_VIDEOS_H
#define VIT_DATA_SETS_VIDEOS_H

#include "data/sets/dataset.h"

/* Files are read whole. */
enum { VIDEO_FILE_MOST = 1 << 30 };

extern const DatasetKind videos_kind;

/* Reads a clip of what Dataset.read returns for a video. */
bool videos_read_clip(const uint8_t *bytes, size_t size, int label, const ClipChoice *choice, const ClipTaker *taker,
                      Error *error);

/* Reads a clip of a video, or of the pictures of a folder. */
bool videos_read_path(const char *path, const ClipChoice *choice, SampleBuffer *buffer, const ClipTaker *taker,
                      Error *error);

#endif
