# The libraries: those that may be missing, and `make report`, which says what was found.
#   LIBRARIES     libraries that programs are linked with; a backend adds its own
#   LEFT_OUT      sources that this machine cannot compile, or need not

comma := ,

# True if the C compiler finds the headers: 1, else 0.
headers = $(shell printf '\043include <%s>\n' $1 | $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 && echo 1 || echo 0)

# MPI, for several processes, if its compiler wrapper is installed.
MPICC ?= mpicc
MPI ?= $(shell command -v $(MPICC) >/dev/null 2>&1 && echo 1 || echo 0)
ifeq ($(MPI),1)
MPI_CPPFLAGS := -DVIT_MPI $(patsubst -I%,-isystem %,$(filter -I%,$(shell $(MPICC) --showme:compile 2>/dev/null || $(MPICC) -compile-info)))
MPI_LIBRARIES := $(filter -L% -l% -Wl$(comma)-rpath% -Wl$(comma)/%,$(shell $(MPICC) --showme:link 2>/dev/null || $(MPICC) -link-info))
endif

# libwebp, for WebP pictures; libsndfile and libsamplerate, for sound.
WEBP ?= $(call headers,webp/decode.h)
SOUND ?= $(call headers,sndfile.h samplerate.h)
WEBP_LIBRARIES := $(if $(filter 1,$(WEBP)),-lwebp)
SOUND_LIBRARIES := $(if $(filter 1,$(SOUND)),-lsndfile -lsamplerate)

# FFmpeg's libraries, for video files, if pkg-config finds them.  Programs load them when they open a video; only the
# tests that make videos are linked with them.
VIDEO_PACKAGES := libavformat libavcodec libswscale libavutil
VIDEO ?= $(shell pkg-config --exists $(VIDEO_PACKAGES) 2>/dev/null && printf '\043include <libavformat/avformat.h>\n' | \
           $(CC) $(CPPFLAGS) $$(pkg-config --cflags $(VIDEO_PACKAGES)) -E -x c - >/dev/null 2>&1 && echo 1 || echo 0)
ifeq ($(VIDEO),1)
VIDEO_CPPFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(VIDEO_PACKAGES)))
VIDEO_LIBRARIES := $(shell pkg-config --libs $(VIDEO_PACKAGES))
endif

LIBRARIES := -linih -ljansson -ljpeg $(WEBP_LIBRARIES) $(SOUND_LIBRARIES) -lxxhash -lpthread -lm -ldl $(MPI_LIBRARIES)
LEFT_OUT := data/images/webp$(if $(filter 1,$(WEBP)),_none).c data/sequences/sound$(if $(filter 1,$(SOUND)),_none).c \
            $(if $(filter 1,$(VIDEO)),data/video/video_none.c,data/video/video.c data/video/video_library.c)

# == What was found ==================================================================================================

# $(call needed,NAME,HEADERS,WHAT FOR; HOW TO INSTALL IT)
needed = $(if $(filter 1,$(call headers,$2)),@echo "  found    $1",@echo "  MISSING  $1: $3")
# $(call optional,1 or 0,NAMES,WHAT IS MISSING WITHOUT IT; HOW TO INSTALL IT)
optional = $(if $(filter 1,$1),@echo "  found    $2",@echo "  without  $2: $3")

report: report-device
	$(call needed,inih,ini.h,config files; apt-get install libinih-dev)
	$(call needed,jansson,jansson.h,checkpoints and COCO's annotations; apt-get install libjansson-dev)
	$(call needed,stb_image,stb/stb_image.h,pictures; apt-get install libstb-dev)
	$(call needed,libjpeg-turbo,stdio.h jpeglib.h,JPEG; apt-get install libjpeg-dev)
	$(call needed,xxHash,xxhash.h,checksums of packed data sets; apt-get install libxxhash-dev)
	$(call optional,$(WEBP),libwebp,no WebP pictures; apt-get install libwebp-dev)
	$(call optional,$(SOUND),libsndfile and libsamplerate,no WAV files; apt-get install libsndfile1-dev libsamplerate0-dev)
	$(call optional,$(VIDEO),FFmpeg's libraries,no video files; apt-get install \
		libavformat-dev libavcodec-dev libswscale-dev pkg-config)
	$(call optional,$(MPI),MPI,one process only; apt-get install libopenmpi-dev openmpi-bin)
	$(call needed,cmocka,stddef.h stdarg.h setjmp.h stdint.h cmocka.h,the tests only; apt-get install libcmocka-dev)
