# make browser: libvit as WebAssembly, in a page that opens without a server (examples/browser).
#   BROWSER_MODELS=build/browser/models      folder of its models, which are trained if they are missing
#   BROWSER_TRAIN="--epochs 1"               arguments for their training
#   BROWSER_PAGE=build/browser/index.html    the page
# emcc comes with emscripten; scripts/deps.sh browser installs it.
.PHONY: browser need-emcc

BROWSER := build/browser
BROWSER_MODELS ?= $(BROWSER)/models
BROWSER_PAGE ?= $(BROWSER)/index.html
# Debian's emscripten starts Debian's helpers in Node.js; another Node.js finds them through this variable.
EMCC ?= NODE_PATH=/usr/share/nodejs emcc

# One thread, no oneDNN, no libjpeg-turbo; headers of jansson, inih and stb_image are those of the native build, and
# examples/browser/standins implements the functions of the first two that are used.
BROWSER_FLAGS := -std=gnu11 -O3 -msimd128 -fno-math-errno -fno-trapping-math -Wall -Wextra -Wshadow \
    -Wno-unknown-pragmas -Wno-pass-failed -I. -Ikernels/cpu -Iexamples/browser/standins -idirafter /usr/include \
    $(patsubst -I%,-idirafter %,$(filter -I%,$(CPPFLAGS))) -D_GNU_SOURCE -DVIT_FP32
BROWSER_LINK := -O3 -msimd128 -s MODULARIZE=1 -s EXPORT_NAME=Vit -s ENVIRONMENT=worker -s ALLOW_MEMORY_GROWTH=1 \
    -s TOTAL_STACK=4MB -s EXPORTED_RUNTIME_METHODS=UTF8ToString,HEAPU8,HEAPF32 \
    -s EXPORTED_FUNCTIONS=$(shell grep -oE '_(vit|__wrap)_[a-z_]*' examples/browser/worker.js | sort -u | paste -sd ,)
BROWSER_SOURCES := $(MODEL_SOURCES) $(wildcard examples/browser/standins/*.c) \
    $(filter-out data/images/jpeg.c data/images/webp.c,$(wildcard data/images/*.c))
BROWSER_OBJECTS := $(BROWSER_SOURCES:%.c=$(BROWSER)/%.o)
BROWSER_PARTS := $(addprefix examples/browser/,assemble.py index.html style.css page.js draw.js worker.js)

browser: $(BROWSER_PAGE)
	@echo "$(BROWSER_PAGE): $$(wc -c < $(BROWSER_PAGE)) bytes, $$(wc -c < $(BROWSER)/vit.wasm) of them WebAssembly"

need-emcc:
	@command -v emcc >/dev/null || { echo "make browser needs emcc: sh scripts/deps.sh browser installs it"; exit 1; }

$(BROWSER)/flags: FORCE
	$(call stamp,$(EMCC) $(BROWSER_FLAGS))
$(BROWSER)/%.o: %.c $(BROWSER)/flags | need-emcc
	@mkdir -p $(@D)
	@echo "EMCC $<"
	@$(EMCC) $(BROWSER_FLAGS) -MMD -MP -c $< -o $@

$(BROWSER)/vit.wasm: $(BROWSER_OBJECTS) make/browser.mk examples/browser/worker.js
	@echo "LINK $@"
	@$(EMCC) $(BROWSER_LINK) $(WRAPPED) $(BROWSER_OBJECTS) -o $(BROWSER)/vit.js

# Models are trained once: those of older sources are equally good.
$(BROWSER_MODELS)/lisa/complete: | $(or $(TRAIN_VIT),$(BUILD)/train_vit)
	@TRAIN_VIT="$(or $(TRAIN_VIT),$(BUILD)/train_vit)" sh examples/browser/train.sh $(BROWSER_MODELS) $(BROWSER_TRAIN)

$(BROWSER_PAGE): $(BROWSER)/vit.wasm $(BROWSER_PARTS) $(BROWSER_MODELS)/lisa/complete
	@python3 examples/browser/assemble.py --wasm $(BROWSER)/vit.wasm --glue $(BROWSER)/vit.js --out $@ \
		Ripple=$(BROWSER_MODELS)/ripple Softmax=$(BROWSER_MODELS)/softmax LiSA=$(BROWSER_MODELS)/lisa

-include $(BROWSER_OBJECTS:.o=.d)
